package openai

import (
	"bytes"
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// Where the values of a prompt stand in what chat templates make of them.
const (
	orderSystem = iota
	orderTools
	orderLast
)

func orderOf(key []byte) uint8 {
	switch string(key) {
	case "system", "instructions":
		return orderSystem
	case "tools":
		return orderTools
	}
	return orderLast
}

func (f *Fields) addOption(s Span) {
	for i := range f.options {
		if f.options[i].Empty() {
			f.options[i] = s
			return
		}
	}
}

// mediaWeight is for how many bytes of text an image or a sound stands in [Fields.Prefix]: some
// hundred tokens.
const mediaWeight = 2048

// Prefix hands add, one by one, the parts of what an engine's cache of the prompt depends on, so
// that two requests of which one continues the other begin with the same bytes: the options of
// the chat template, instructions, tools, and then the rest in the order of the body. The texts are
// as they are in the JSON; for an image or a sound stands a digest of it. add must not keep what
// it gets.
func (f *Fields) Prefix(body []byte, add func([]byte)) {
	for _, s := range f.options {
		if !s.Empty() {
			add(s.Of(body))
			add(partEnds)
		}
	}
	for order := range uint8(orderLast + 1) {
		for i := range f.prompts {
			if f.order[i] == order {
				addValue(f.prompt[i].Of(body), add)
				add(partEnds)
			}
		}
	}
}

// partEnds is no part of any JSON.
var partEnds = []byte{0}

func addValue(value []byte, add func([]byte)) {
	at := 0
	for {
		start, end := nextMedia(value, at)
		if start < 0 {
			add(value[at:])
			return
		}
		add(value[at:start])
		var digest [64]byte
		for i := 0; i < len(digest); i += 8 {
			binary.LittleEndian.PutUint64(digest[i:], xxhash.Sum64(value[start:end]))
		}
		for range mediaWeight / len(digest) {
			add(digest[:])
		}
		at = end
	}
}

// mediaBytes returns the size of the base64 strings in a JSON value.
func mediaBytes(value []byte) (n int) {
	for at := 0; ; {
		start, end := nextMedia(value, at)
		if start < 0 {
			return n
		}
		n += end - start
		at = end
	}
}

// nextMedia finds the first base64 string in a JSON value from there on, start below 0 if there is
// none: data URIs, and the strings under a key "data" (input_audio, Anthropic's images). In valid
// JSON a quote that no backslash precedes and that is followed by a letter opens a string, so the
// search needs no parser.
func nextMedia(value []byte, i int) (start, end int) {
	const mark = `"data`
	for len(value)-i >= minMedia {
		k := bytes.Index(value[i:], []byte(mark))
		if k < 0 {
			break
		}
		start := i + k
		i = start + len(mark)
		if start > 0 && value[start-1] == '\\' || i == len(value) {
			continue
		}
		if value[i] == '"' {
			i = skipSpace(value, i+1)
			if i == len(value) || value[i] != ':' {
				continue
			}
			i = skipSpace(value, i+1)
			if i == len(value) || value[i] != '"' {
				continue
			}
			start = i
			i++
		} else if value[i] != ':' {
			continue
		}
		size := bytes.IndexByte(value[i:], '"')
		if size < 0 {
			break
		}
		i += size
		if i-start >= minMedia {
			return start, i
		}
	}
	return -1, -1
}

// Salt returns the request's cache_salt, "" if it has none that is text.
func (f *Fields) Salt(body []byte) string {
	raw := f.CacheSalt.Of(body)
	if len(raw) == 0 || raw[0] != '"' {
		return ""
	}
	return unquote(raw)
}
