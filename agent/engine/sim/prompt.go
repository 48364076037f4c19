package sim

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// imageTokens is the length of one image or other medium in a prompt.
const imageTokens = 64

// chatPrompt applies the chat template, which is ChatML: each message is
// <|im_start|>role\ncontent<|im_end|>\n. The tools come first, then the system
// text that a field of that name holds, then the messages; an open assistant
// message ends the prompt where generate is set. Media become imageTokens
// tokens that depend on their content.
func chatPrompt(f fields, system string, generate bool) []uint32 {
	f.require("messages")
	items, ok := f.list("messages")
	if !ok {
		return nil
	}
	var ids []uint32
	if tools, ok := f.get("tools"); ok {
		ids = append(ids, tokenStart, tokenSystem, '\n')
		ids = encode(ids, string(tools))
		ids = append(ids, tokenEnd, '\n')
	}
	if raw, ok := f.get(system); ok {
		ids = append(ids, tokenStart, tokenSystem, '\n')
		ids = content(ids, f, system, raw)
		ids = append(ids, tokenEnd, '\n')
	}
	for i, item := range items {
		ids = message(ids, f, "messages."+strconv.Itoa(i), item)
	}
	if generate {
		ids = append(ids, tokenStart, tokenAssistant, '\n')
	}
	return ids
}

// inputPrompt is chatPrompt for /v1/responses: a text or a list of items, some
// of which are no messages and have no role.
func inputPrompt(f fields) []uint32 {
	var ids []uint32
	if raw, ok := f.get("instructions"); ok {
		ids = append(ids, tokenStart, tokenSystem, '\n')
		ids = content(ids, f, "instructions", raw)
		ids = append(ids, tokenEnd, '\n')
	}
	f.require("input")
	raw, ok := f.get("input")
	switch {
	case !ok:
	case raw[0] == '"':
		ids = append(ids, tokenStart, tokenUser, '\n')
		ids = encode(ids, f.text("input"))
		ids = append(ids, tokenEnd, '\n')
	default:
		items, _ := f.list("input")
		for i, item := range items {
			var m map[string]json.RawMessage
			if json.Unmarshal(item, &m) == nil && m != nil && m["role"] == nil {
				ids = append(ids, tokenStart, tokenTool, '\n')
				ids = encode(ids, string(item))
				ids = append(ids, tokenEnd, '\n')
				continue
			}
			ids = message(ids, f, "input."+strconv.Itoa(i), item)
		}
	}
	return append(ids, tokenStart, tokenAssistant, '\n')
}

// message appends one message that stands at loc in f.
func message(ids []uint32, f fields, loc string, item json.RawMessage) []uint32 {
	m := fields{loc: f.loc + "." + loc, errs: f.errs}
	if json.Unmarshal(item, &m.raw) != nil || m.raw == nil {
		f.fail(loc, "dict_type", "Input should be a valid dictionary", inputOf(item))
		return ids
	}
	m.require("role")
	ids = append(ids, tokenStart)
	role := m.text("role")
	if id, ok := roleTokens[role]; ok {
		ids = append(ids, id)
	} else {
		ids = encode(ids, role)
	}
	ids = append(ids, '\n')
	for _, name := range slices.Sorted(maps.Keys(m.raw)) {
		switch raw, ok := m.get(name); {
		case !ok || name == "role":
		case name == "content":
			ids = content(ids, m, name, raw)
		default: // tool calls, names and the like
			ids = encode(ids, string(raw))
		}
	}
	return append(ids, tokenEnd, '\n')
}

// content appends the field name of m: a text, or a list of parts.
func content(ids []uint32, m fields, name string, raw json.RawMessage) []uint32 {
	if raw[0] == '"' {
		return encode(ids, m.text(name))
	}
	parts, _ := m.list(name)
	for i, part := range parts {
		at := name + "." + strconv.Itoa(i)
		p := fields{loc: m.loc + "." + at, errs: m.errs}
		switch {
		case json.Unmarshal(part, &p.raw) != nil || p.raw == nil:
			m.fail(at, "dict_type", "Input should be a valid dictionary", inputOf(part))
		case p.raw["text"] != nil:
			ids = encode(ids, p.text("text"))
		case isMedium(p.text("type")):
			ids = medium(ids, part)
		default: // tool calls and results
			ids = encode(ids, string(part))
		}
	}
	return ids
}

// isMedium tells parts with an image, a sound, a video or a file from others,
// in OpenAI's and Anthropic's words.
func isMedium(kind string) bool {
	for _, word := range []string{"image", "audio", "video", "file", "document"} {
		if strings.Contains(kind, word) {
			return true
		}
	}
	return false
}

// medium appends the tokens of something that is no text. Their ids lie between
// those of text and the special ones, where no UTF-8 begins.
func medium(ids []uint32, data []byte) []uint32 {
	h := xxhash.Sum64(data)
	ids = append(ids, tokenImage)
	for i := range uint64(imageTokens - 1) {
		ids = append(ids, 0xFE000000|uint32(mix(h+i)&0xFFFFFF))
	}
	return ids
}
