package sim

import (
	"encoding/json"
	"math"
	"net/http"
)

// textAnswer is the body of a whole /v1/completions answer.
type textAnswer struct {
	ID               string       `json:"id"`
	Object           string       `json:"object"`
	Created          int64        `json:"created"`
	Model            string       `json:"model"`
	Choices          []textChoice `json:"choices"`
	ServiceTier      any          `json:"service_tier"`
	Fingerprint      string       `json:"system_fingerprint"`
	Usage            usage        `json:"usage"`
	KVTransferParams any          `json:"kv_transfer_params"`
	ECTransferParams any          `json:"ec_transfer_params"`
	Metrics          any          `json:"metrics"`
}

type textChoice struct {
	Index          int             `json:"index"`
	Text           string          `json:"text"`
	Logprobs       any             `json:"logprobs"`
	FinishReason   string          `json:"finish_reason"`
	StopReason     *string         `json:"stop_reason"`
	TokenIDs       json.RawMessage `json:"token_ids"`
	PromptLogprobs any             `json:"prompt_logprobs"`
	PromptTokenIDs json.RawMessage `json:"prompt_token_ids"`
	RoutedExperts  any             `json:"routed_experts"`
}

// completionTokens is max_tokens of /v1/completions where the client names
// none, OpenAI's and vLLM's default.
const completionTokens = 16

// prompts reads a field that is a text, a list of texts, a list of token ids or
// a list of such lists.
func prompts(f fields, name string) [][]uint32 {
	f.require(name)
	raw, ok := f.get(name)
	if !ok {
		return nil
	}
	if raw[0] == '"' {
		return [][]uint32{encode(nil, f.text(name))}
	}
	wrong := func() [][]uint32 {
		f.fail(name, "list_type", "Input should be a text, a list of texts, or lists of token ids from 0 to 4294967295", inputOf(raw))
		return nil
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		return wrong()
	}
	if len(list) == 0 {
		f.fail(name, "too_short", "List should have at least 1 item", inputOf(raw))
		return nil
	}
	if ids, ok := idList(raw); ok {
		return [][]uint32{ids}
	}
	var out [][]uint32
	for _, item := range list {
		var text string
		if json.Unmarshal(item, &text) == nil && item[0] == '"' {
			out = append(out, encode(nil, text))
			continue
		}
		ids, ok := idList(item)
		if !ok {
			return wrong()
		}
		out = append(out, ids)
	}
	return out
}

// idList reads a list of token ids.
func idList(raw json.RawMessage) ([]uint32, bool) {
	var nums []float64
	if raw[0] != '[' || json.Unmarshal(raw, &nums) != nil {
		return nil, false
	}
	ids := make([]uint32, len(nums))
	for i, n := range nums {
		if n < 0 || n > math.MaxUint32 || n != math.Trunc(n) {
			return nil, false
		}
		ids[i] = uint32(n)
	}
	return ids, true
}

// completions serves /v1/completions.
func (x *call) completions(f fields) {
	list := prompts(f, "prompt")
	q, bad := parseRequest(f, "stop", "max_tokens")
	if bad == nil {
		bad = x.core.resolve(&q, true)
	}
	if bad == nil {
		bad = noEmpty(list)
	}
	q.usual = completionTokens
	var j *job
	if bad == nil {
		j, bad = x.e.cfg.generation(&q, list...)
	}
	if bad != nil {
		x.fail(bad)
		return
	}
	id, created := x.id("cmpl-", &q), now()
	if q.stream {
		x.stream(j, &textFrames{e: x.e, job: j, q: &q, head: chunkHead(id, "text_completion", created, q.model)})
		return
	}
	if !x.wait(j) {
		return
	}
	a := textAnswer{
		ID: id, Object: "text_completion", Created: created, Model: q.model,
		Fingerprint: x.e.fingerprint, Usage: j.tally(q.n).usage(false),
	}
	for i, s := range j.seqs {
		a.Choices = append(a.Choices, textChoice{
			Index: i, Text: s.text(), FinishReason: s.finishOf(), StopReason: s.stopReason(),
			TokenIDs: tokenIDs(q.returnIDs, s.outputIDs()), PromptTokenIDs: tokenIDs(q.returnIDs, s.prompt),
		})
	}
	x.json(http.StatusOK, a)
}

// noEmpty refuses prompts without a token.
func noEmpty(list [][]uint32) *apiError {
	for i, ids := range list {
		if len(ids) == 0 {
			return badRequest("prompt", "", "The decoder prompt cannot be empty (prompt %d of %d).", i+1, len(list))
		}
	}
	return nil
}

// textFrames writes text_completion events.
type textFrames struct {
	e    *Engine
	job  *job
	q    *request
	head []byte
	sent []bool // choices whose prompt ids were sent
}

func (f *textFrames) open(buf []byte) []byte {
	f.sent = make([]bool, len(f.job.seqs))
	return buf
}

func (f *textFrames) token(buf []byte, i, at int, finish string) []byte {
	s, upto := f.job.seqs[i], after(at, finish)
	buf = append(append(buf, f.head...), `{"index":`...)
	buf = appendInt(buf, i)
	buf = append(buf, `,"text":"`...)
	buf = s.out.appendText(buf, at, upto)
	buf = append(buf, `","logprobs":null,"finish_reason":`...)
	buf = appendFinish(buf, s, finish, true)
	buf = append(buf, `,"prompt_token_ids":`...)
	if f.q.returnIDs && !f.sent[i] {
		buf = appendIDs(buf, s.prompt)
	} else {
		buf = append(buf, "null"...)
	}
	f.sent[i] = true
	buf = append(buf, `,"token_ids":`...)
	buf = appendTokenID(buf, s, at, finish, f.q.returnIDs)
	buf = append(buf, `}]`...)
	if f.q.includeUsage && f.q.continuous {
		buf = appendUsage(append(buf, ','), len(s.prompt), upto)
		buf = append(buf, '}')
	}
	if finish != "" && !f.q.includeUsage {
		buf = appendFingerprint(buf, f.e)
	}
	return append(buf, "}\n\n"...)
}

func (f *textFrames) close(buf []byte) []byte {
	if f.q.includeUsage {
		t := f.job.tally(f.q.n)
		buf = append(append(buf, f.head...), `],`...)
		buf = appendUsage(buf, t.prompt, t.completion)
		buf = append(buf, `,"prompt_tokens_details":{"cached_tokens":`...)
		buf = appendInt(buf, t.cached)
		buf = append(buf, "}}"...)
		buf = appendFingerprint(buf, f.e)
		buf = append(buf, "}\n\n"...)
	}
	return append(buf, doneFrame...)
}
