package sim

import (
	"encoding/json"
	"net/http"
)

// response is the `response` object of /v1/responses, in vLLM's order of keys.
type response struct {
	ID                 string          `json:"id"`
	CreatedAt          int64           `json:"created_at"`
	Incomplete         *incomplete     `json:"incomplete_details"`
	Instructions       json.RawMessage `json:"instructions"`
	Metadata           json.RawMessage `json:"metadata"`
	Model              string          `json:"model"`
	Object             string          `json:"object"`
	Output             []outputItem    `json:"output"`
	ParallelToolCalls  bool            `json:"parallel_tool_calls"`
	Temperature        json.RawMessage `json:"temperature"`
	ToolChoice         string          `json:"tool_choice"`
	Tools              []any           `json:"tools"`
	TopP               json.RawMessage `json:"top_p"`
	Background         bool            `json:"background"`
	MaxOutputTokens    int             `json:"max_output_tokens"`
	MaxToolCalls       any             `json:"max_tool_calls"`
	PreviousResponseID any             `json:"previous_response_id"`
	Prompt             any             `json:"prompt"`
	Reasoning          any             `json:"reasoning"`
	ServiceTier        string          `json:"service_tier"`
	Status             string          `json:"status"`
	Text               any             `json:"text"`
	TopLogprobs        any             `json:"top_logprobs"`
	Truncation         string          `json:"truncation"`
	Usage              *responseUsage  `json:"usage"`
	User               json.RawMessage `json:"user"`
	PresencePenalty    json.RawMessage `json:"presence_penalty"`
	FrequencyPenalty   json.RawMessage `json:"frequency_penalty"`
	KVTransferParams   any             `json:"kv_transfer_params"`
	ECTransferParams   any             `json:"ec_transfer_params"`
	InputMessages      any             `json:"input_messages"`
	OutputMessages     any             `json:"output_messages"`
}

type incomplete struct {
	Reason string `json:"reason"`
}

type outputItem struct {
	ID      string       `json:"id"`
	Content []outputText `json:"content"`
	Role    string       `json:"role"`
	Status  string       `json:"status"`
	Type    string       `json:"type"`
	Phase   any          `json:"phase"`
}

type outputText struct {
	Annotations []any  `json:"annotations"`
	Text        string `json:"text"`
	Type        string `json:"type"`
	Logprobs    []any  `json:"logprobs"`
}

type responseUsage struct {
	Input        int          `json:"input_tokens"`
	InputDetail  inputDetail  `json:"input_tokens_details"`
	Output       int          `json:"output_tokens"`
	OutputDetail outputDetail `json:"output_tokens_details"`
	Total        int          `json:"total_tokens"`
}

type inputDetail struct {
	Cached        int   `json:"cached_tokens"`
	CacheWrite    int   `json:"cache_write_tokens"`
	PerTurn       []int `json:"input_tokens_per_turn"`
	CachedPerTurn []int `json:"cached_tokens_per_turn"`
}

type outputDetail struct {
	Reasoning   int   `json:"reasoning_tokens"`
	ToolOutput  int   `json:"tool_output_tokens"`
	PerTurn     []int `json:"output_tokens_per_turn"`
	ToolPerTurn []int `json:"tool_output_tokens_per_turn"`
}

// responses serves /v1/responses. Nothing is stored, so previous_response_id
// finds nothing.
func (x *call) responses(f fields) {
	prompt := inputPrompt(f)
	q, bad := parseRequest(f, "stop", "max_output_tokens")
	q.n, q.returnIDs = 1, false
	previous := f.text("previous_response_id")
	if bad == nil && previous != "" {
		bad = &apiError{http.StatusNotFound, "NotFoundError", "response_id", "Response with id '" + previous + "' not found."}
	}
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
	decimal := func(name string, def float64) json.RawMessage {
		return json.RawMessage(pyFloat(f.number(name, def)))
	}
	most := q.limits.maxTokens
	if !q.maxSet {
		most = x.e.cfg.MaxModelLen - len(prompt)
	}
	base := response{
		ID: x.id("resp_", &q), CreatedAt: now(), Model: q.model, Object: "response", Output: []outputItem{},
		Instructions: f.raw["instructions"], Metadata: f.raw["metadata"], User: f.raw["user"],
		ParallelToolCalls: true, Temperature: decimal("temperature", 1), ToolChoice: "none", Tools: []any{}, TopP: decimal("top_p", 1),
		MaxOutputTokens: most, ServiceTier: "auto", Status: "in_progress", Truncation: "disabled",
		PresencePenalty: decimal("presence_penalty", 0), FrequencyPenalty: decimal("frequency_penalty", 0),
	}
	frames := &responseFrames{seq: j.seqs[0], base: base, item: "msg_" + randomID()}
	if q.stream {
		x.stream(j, frames)
		return
	}
	if x.wait(j) {
		x.json(http.StatusOK, frames.whole())
	}
}

// responseFrames writes the events of /v1/responses.
type responseFrames struct {
	seq  *sequence
	base response // as it began
	item string   // id of the one output item
	next int      // sequence_number
}

// part is the content of the output item.
func (f *responseFrames) part() outputText {
	return outputText{Annotations: []any{}, Text: f.seq.text(), Type: "output_text"}
}

func (f *responseFrames) message(status string, parts ...outputText) outputItem {
	if parts == nil {
		parts = []outputText{}
	}
	return outputItem{ID: f.item, Content: parts, Role: "assistant", Status: status, Type: "message"}
}

// whole is the response after its end.
func (f *responseFrames) whole() response {
	r, s := f.base, f.seq
	r.Status = "completed"
	switch s.finishOf() {
	case "length":
		r.Status, r.Incomplete = "incomplete", &incomplete{"max_output_tokens"}
	case "abort":
		r.Status = "incomplete"
	}
	r.Output = []outputItem{f.message("completed", f.part())}
	out, _ := s.look()
	r.Usage = &responseUsage{
		Input: len(s.prompt), InputDetail: inputDetail{Cached: s.cached, CacheWrite: s.created, PerTurn: []int{}, CachedPerTurn: []int{}},
		Output: out, OutputDetail: outputDetail{PerTurn: []int{}, ToolPerTurn: []int{}}, Total: len(s.prompt) + out,
	}
	return r
}

// event appends one event. Its own fields come sorted by name, as vLLM's do,
// which is the order that Go writes a map in.
func (f *responseFrames) event(buf []byte, kind string, own map[string]any) []byte {
	own["sequence_number"], own["type"] = f.next, kind
	f.next++
	buf = append(buf, "event: "+kind+"\ndata: "...)
	return append(append(buf, marshal(own)...), "\n\n"...)
}

func (f *responseFrames) open(buf []byte) []byte {
	buf = f.event(buf, "response.created", map[string]any{"response": f.base})
	buf = f.event(buf, "response.in_progress", map[string]any{"response": f.base})
	buf = f.event(buf, "response.output_item.added", map[string]any{"item": f.message("in_progress"), "output_index": 0})
	return f.event(buf, "response.content_part.added", map[string]any{
		"content_index": 0, "item_id": f.item, "output_index": 0,
		"part": outputText{Annotations: []any{}, Type: "output_text", Logprobs: []any{}},
	})
}

func (f *responseFrames) token(buf []byte, _, at int, finish string) []byte {
	text := f.seq.out.appendText(nil, at, after(at, finish))
	if len(text) == 0 {
		return buf
	}
	buf = append(buf, "event: response.output_text.delta\n"+`data: {"content_index":0,"delta":`...)
	buf = appendString(buf, string(text))
	buf = append(buf, `,"item_id":"`+f.item+`","logprobs":[],"output_index":0,"sequence_number":`...)
	buf = appendInt(buf, f.next)
	f.next++
	return append(buf, `,"type":"response.output_text.delta"}`+"\n\n"...)
}

func (f *responseFrames) close(buf []byte) []byte {
	part := f.part()
	buf = f.event(buf, "response.output_text.done", map[string]any{
		"content_index": 0, "item_id": f.item, "logprobs": []any{}, "output_index": 0, "text": part.Text,
	})
	buf = f.event(buf, "response.content_part.done", map[string]any{"content_index": 0, "item_id": f.item, "output_index": 0, "part": part})
	buf = f.event(buf, "response.output_item.done", map[string]any{"item": f.message("completed", part), "output_index": 0})
	// vLLM names the event so even where the status is incomplete.
	return f.event(buf, "response.completed", map[string]any{"response": f.whole()})
}
