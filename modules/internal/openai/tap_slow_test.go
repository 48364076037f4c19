package openai

import (
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
)

// member is a member of an object, its value as written.
type member struct {
	key   string
	value string
}

// slowObject takes an object apart with encoding/json. It fails where the
// reading of a text may depend on who reads: what is no object, escapes, and
// keys that are there twice.
func slowObject(text string) ([]member, bool) {
	d := json.NewDecoder(strings.NewReader(text))
	if brace, err := d.Token(); err != nil || brace != json.Delim('{') || !json.Valid([]byte(text)) || strings.Contains(text, `\`) {
		return nil, false
	}
	var all []member
	seen := map[string]bool{}
	for d.More() {
		key, err := d.Token()
		var value json.RawMessage
		if err != nil || d.Decode(&value) != nil || seen[key.(string)] {
			return nil, false
		}
		seen[key.(string)] = true
		all = append(all, member{key.(string), strings.TrimSpace(string(value))})
	}
	return all, true
}

// slowReader is what a stream has said so far. known is false once something
// came of which nothing is promised.
type slowReader struct {
	Result
	typed, known bool
}

// slowRead is what a Tap sees in a stream, written for clarity.
func slowRead(stream string) (Result, bool) {
	r := slowReader{known: true}
	var data []string
	name, size := "", 0
	flush := func() {
		if len(data) > 0 {
			r.event(name, strings.Join(data, "\n"))
		}
		r.known = r.known && size <= maxEvent/2
		data, name, size = nil, "", 0
	}
	for _, line := range lineEnd.Split(stream, -1) {
		size += len(line) + 2
		field, value, colon := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "":
			flush()
		case field == "data":
			data = append(data, value)
		case field == "event" && colon:
			name = value
		}
	}
	flush()
	r.Complete = (r.Done || !r.typed) && !r.Aborted && !r.ErrorFrame
	r.Bytes = int64(len(stream))
	return r.Result, r.known
}

var clientStatus = regexp.MustCompile(`^4[0-9][0-9]$`)

var lastEvents = regexp.MustCompile(`^(response\.completed|response\.incomplete|response\.cancelled|message_stop|transcript\.text\.done)$`)

func (r *slowReader) event(name, data string) {
	if strings.Trim(data, " \t") == "[DONE]" && len(data) < 32 {
		r.Done = true
		return
	}
	members, ok := slowObject(data)
	if !ok {
		r.known = false
		return
	}
	content, choices, usage, errored, typ := false, false, false, false, ""
	clients := false
	code := func(value string) {
		clients = clients || clientStatus.MatchString(value) && value != "408" && value != "429"
	}
	delta := false
	for _, m := range members {
		switch m.key {
		case "choices":
			choices = true
			content = r.choices(m.value)
		case "usage":
			usage = r.usage(m.value) || usage
		case "error":
			errored = errored || m.value[0] == '{' || m.value[0] == '"' && m.value != `""`
			if m.value[0] == '{' {
				inner, ok := slowObject(m.value)
				r.known = r.known && ok
				for _, m := range inner {
					if m.key == "code" {
						code(m.value)
					}
				}
			}
		case "code":
			code(m.value)
		case "object":
			errored = errored || m.value == `"error"`
		case "type":
			typ = text(m.value)
		case "delta":
			delta = !blank(m.value)
			if m.value[0] == '{' {
				delta = r.delta(m.value)
			}
		case "response", "message":
			if m.value[0] != '{' {
				break
			}
			inner, ok := slowObject(m.value)
			r.known = r.known && ok
			for _, m := range inner {
				switch m.key {
				case "usage":
					usage = r.usage(m.value) || usage
				case "error":
					errored = errored || m.value[0] == '{'
				}
			}
		case "stop_reason":
			r.finish(m.value)
		}
	}
	switch typ {
	case "":
		content = content || delta || !choices && !errored && !usage
	case "error", "response.failed":
		errored = true
	default:
		content = content || delta
	}
	if name == "error" {
		errored, content = true, false
	}
	r.typed = r.typed || choices || typ != "" || name != "" && name != "message"
	r.ErrorFrame = r.ErrorFrame || errored
	r.ClientError = r.ClientError || errored && clients
	r.Done = r.Done || lastEvents.MatchString(typ) || lastEvents.MatchString(name)
	if content {
		r.Events++
	}
}

func (r *slowReader) choices(value string) (content bool) {
	if value[0] != '[' {
		return false
	}
	var list []json.RawMessage
	_ = json.Unmarshal([]byte(value), &list) // it is valid
	for _, choice := range list {
		members, ok := slowObject(string(choice))
		r.known = r.known && ok
		for _, m := range members {
			switch m.key {
			case "delta", "message":
				content = m.value[0] == '{' && r.delta(m.value) || content
			case "text":
				content = content || !blank(m.value)
			case "finish_reason":
				r.finish(m.value)
			}
		}
	}
	return content
}

// delta reports whether any member beside those that frame it has a value.
func (r *slowReader) delta(value string) (content bool) {
	members, ok := slowObject(value)
	r.known = r.known && ok
	for _, m := range members {
		switch m.key {
		case "stop_reason":
			r.finish(m.value)
		case "role", "type", "stop_sequence":
		default:
			content = content || !blank(m.value)
		}
	}
	return content
}

func (r *slowReader) finish(value string) {
	reason := text(value)
	if reason == "" {
		return
	}
	r.Finish = reason
	r.Aborted = r.Aborted || reason == "abort"
	r.known = r.known && len(reason) <= maxFinish && strings.ToValidUTF8(reason, "") == reason
}

// usage reads the counts of a usage object and reports whether there was one.
func (r *slowReader) usage(value string) (have bool) {
	if value[0] != '{' {
		return false
	}
	members, ok := slowObject(value)
	r.known = r.known && ok
	var u Usage
	beside := int64(0)
	for _, m := range members {
		n, isCount := count(m.value)
		switch m.key {
		case "prompt_tokens", "input_tokens":
			if isCount {
				u.Prompt, have = n, true
			}
		case "completion_tokens", "output_tokens":
			if isCount {
				u.Completion, have = n, true
			}
		case "prompt_tokens_details", "input_tokens_details":
			r.detail(m.value, "cached_tokens", &u.Cached)
		case "completion_tokens_details", "output_tokens_details":
			r.detail(m.value, "reasoning_tokens", &u.Reasoning)
		case "cache_read_input_tokens":
			u.Cached = max(u.Cached, n)
			beside += n
		case "cache_creation_input_tokens":
			beside += n
		}
	}
	u.Prompt += beside
	u.Cached, u.Reasoning = min(u.Cached, u.Prompt), min(u.Reasoning, u.Completion)
	if have {
		r.Usage.merge(u)
		r.HaveUsage = true
	}
	return have
}

func (r *slowReader) detail(value, key string, n *int64) {
	if value[0] != '{' {
		return
	}
	members, ok := slowObject(value)
	r.known = r.known && ok
	for _, m := range members {
		if v, isCount := count(m.value); m.key == key && isCount {
			*n = v
		}
	}
}

// count returns a whole number of tokens that can be believed.
func count(value string) (int64, bool) {
	n, err := strconv.ParseUint(value, 10, 64)
	if err != nil || n > maxCount {
		return 0, false
	}
	return int64(n), true
}

func text(value string) string {
	if value[0] != '"' {
		return ""
	}
	return value[1 : len(value)-1]
}

var blankValue = regexp.MustCompile(`^(null|""|\[\s*\]|\{\s*\})$`)

func blank(value string) bool { return blankValue.MatchString(value) }
