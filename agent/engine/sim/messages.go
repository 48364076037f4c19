package sim

import "net/http"

// messageAnswer is the body of a whole /v1/messages answer.
type messageAnswer struct {
	ID         string        `json:"id"`
	Type       string        `json:"type"`
	Role       string        `json:"role"`
	Content    []messagePart `json:"content"`
	Model      string        `json:"model"`
	StopReason *string       `json:"stop_reason"`
	Usage      messageUsage  `json:"usage"`
}

type messagePart struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// messageUsage counts cached prompt tokens apart from the others, as Anthropic
// does.
type messageUsage struct {
	Input        int `json:"input_tokens"`
	Output       int `json:"output_tokens"`
	CacheCreated int `json:"cache_creation_input_tokens"`
	CacheRead    int `json:"cache_read_input_tokens"`
}

// stopReasons translates finish_reason; an abort has no word in Anthropic's API
// and is null.
var stopReasons = map[string]string{"stop": "end_turn", "length": "max_tokens"}

// anthropicStop is the stop_reason of s, nil for an abort.
func (s *sequence) anthropicStop() *string {
	word, ok := stopReasons[s.finishOf()]
	if s.stopReason() != nil {
		word = "stop_sequence"
	}
	if !ok {
		return nil
	}
	return &word
}

// messages serves /v1/messages.
func (x *call) messages(f fields) {
	prompt := chatPrompt(f, "system", true)
	f.require("max_tokens")
	q, bad := parseRequest(f, "stop_sequences", "max_tokens")
	if len(*f.errs) == 0 {
		x.anthropic = true
	}
	q.n, q.returnIDs = 1, false
	if bad == nil {
		bad = x.core.resolve(&q, true)
	}
	var j *job
	if bad == nil {
		j, bad = x.e.cfg.generation(&q, prompt)
	}
	if bad != nil {
		x.fail(bad)
		return
	}
	id := x.id("chatcmpl-", &q)
	if q.stream {
		x.stream(j, &messageFrames{seq: j.seqs[0], id: id, model: q.model})
		return
	}
	if !x.wait(j) {
		return
	}
	s := j.seqs[0]
	x.json(http.StatusOK, messageAnswer{
		ID: id, Type: "message", Role: "assistant", Content: []messagePart{{"text", s.text()}},
		Model: q.model, StopReason: s.anthropicStop(), Usage: s.messageUsage(),
	})
}

func (s *sequence) messageUsage() messageUsage {
	produced, _ := s.look()
	return messageUsage{len(s.prompt) - s.cached, produced, s.created, s.cached}
}

// countTokens serves /v1/messages/count_tokens.
func (x *call) countTokens(f fields) {
	prompt := chatPrompt(f, "system", true)
	if !x.known(f, true) {
		return
	}
	type original struct {
		Tokens int `json:"original_input_tokens"`
	}
	x.json(http.StatusOK, struct {
		Tokens  int      `json:"input_tokens"`
		Context original `json:"context_management"`
	}{len(prompt), original{len(prompt)}})
}

// messageFrames writes Anthropic's events.
type messageFrames struct {
	seq       *sequence
	id, model string
}

func (f *messageFrames) open(buf []byte) []byte {
	buf = append(buf, `event: message_start`+"\n"+`data: {"type":"message_start","message":{"id":`...)
	buf = appendString(buf, f.id)
	buf = append(buf, `,"type":"message","role":"assistant","content":[],"model":`...)
	buf = appendString(buf, f.model)
	buf = append(buf, `,"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":`...)
	buf = appendInt(buf, len(f.seq.prompt)-f.seq.cached)
	buf = append(buf, `,"output_tokens":0}}}`+"\n\n"...)
	return append(buf, `event: content_block_start`+"\n"+`data: {"type":"content_block_start","content_block":{"type":"text","text":""},"index":0}`+"\n\n"...)
}

func (f *messageFrames) token(buf []byte, _, at int, finish string) []byte {
	text := f.seq.out.appendText(nil, at, after(at, finish))
	if len(text) == 0 {
		return buf
	}
	buf = append(buf, `event: content_block_delta`+"\n"+`data: {"type":"content_block_delta","delta":{"type":"text_delta","text":`...)
	buf = appendString(buf, string(text))
	return append(buf, `},"index":0}`+"\n\n"...)
}

func (f *messageFrames) close(buf []byte) []byte {
	buf = append(buf, `event: content_block_stop`+"\n"+`data: {"type":"content_block_stop","index":0}`+"\n\n"...)
	buf = append(buf, `event: message_delta`+"\n"+`data: {"type":"message_delta","delta":{"stop_reason":`...)
	buf = appendNullable(buf, f.seq.anthropicStop())
	buf = append(buf, `,"stop_sequence":`...)
	buf = appendNullable(buf, f.seq.stopReason())
	u := f.seq.messageUsage()
	buf = append(buf, `},"usage":{"input_tokens":`...)
	buf = appendInt(buf, u.Input)
	buf = append(buf, `,"output_tokens":`...)
	buf = appendInt(buf, u.Output)
	buf = append(buf, `,"cache_creation_input_tokens":`...)
	buf = appendInt(buf, u.CacheCreated)
	buf = append(buf, `,"cache_read_input_tokens":`...)
	buf = appendInt(buf, u.CacheRead)
	buf = append(buf, "}}\n\n"...)
	return append(buf, `event: message_stop`+"\n"+`data: {"type":"message_stop"}`+"\n\n"...)
}

// appendNullable appends a JSON string, or null for nil.
func appendNullable(dst []byte, s *string) []byte {
	if s == nil {
		return append(dst, "null"...)
	}
	return appendString(dst, *s)
}
