package sim

import (
	"encoding/json"
	"net/http"
)

// chatAnswer is the body of a whole /v1/chat/completions answer, in vLLM's
// order of keys.
type chatAnswer struct {
	ID               string          `json:"id"`
	Object           string          `json:"object"`
	Created          int64           `json:"created"`
	Model            string          `json:"model"`
	Choices          []chatChoice    `json:"choices"`
	ServiceTier      any             `json:"service_tier"`
	Fingerprint      string          `json:"system_fingerprint"`
	Usage            usage           `json:"usage"`
	PromptLogprobs   any             `json:"prompt_logprobs"`
	PromptTokenIDs   json.RawMessage `json:"prompt_token_ids"`
	PromptText       any             `json:"prompt_text"`
	KVTransferParams any             `json:"kv_transfer_params"`
	ECTransferParams any             `json:"ec_transfer_params"`
	Metrics          any             `json:"metrics"`
}

type chatChoice struct {
	Index         int             `json:"index"`
	Message       chatMessage     `json:"message"`
	Logprobs      any             `json:"logprobs"`
	FinishReason  string          `json:"finish_reason"`
	StopReason    *string         `json:"stop_reason"`
	TokenIDs      json.RawMessage `json:"token_ids"`
	RoutedExperts any             `json:"routed_experts"`
}

type chatMessage struct {
	Role         string `json:"role"`
	Content      string `json:"content"`
	Refusal      any    `json:"refusal"`
	Annotations  any    `json:"annotations"`
	Audio        any    `json:"audio"`
	FunctionCall any    `json:"function_call"`
	Reasoning    any    `json:"reasoning"`
}

// chat serves /v1/chat/completions.
func (x *call) chat(f fields) {
	prompt := chatPrompt(f, "", true)
	q, bad := parseRequest(f, "stop", "max_tokens", "max_completion_tokens")
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
	id, created := x.id("chatcmpl-", &q), now()
	if q.stream {
		x.stream(j, newChatFrames(x.e, j, &q, id, created))
		return
	}
	if !x.wait(j) {
		return
	}
	a := chatAnswer{
		ID: id, Object: "chat.completion", Created: created, Model: q.model, Fingerprint: x.e.fingerprint,
		Usage: j.tally(q.n).usage(true), PromptTokenIDs: tokenIDs(q.returnIDs, prompt),
	}
	for i, s := range j.seqs {
		a.Choices = append(a.Choices, chatChoice{
			Index: i, Message: chatMessage{Role: "assistant", Content: s.text()},
			FinishReason: s.finishOf(), StopReason: s.stopReason(), TokenIDs: tokenIDs(q.returnIDs, s.outputIDs()),
		})
	}
	x.json(http.StatusOK, a)
}

// chatFrames writes chat.completion.chunk events.
type chatFrames struct {
	e    *Engine
	job  *job
	q    *request
	head []byte // of every chunk, up to the choices
}

func newChatFrames(e *Engine, j *job, q *request, id string, created int64) *chatFrames {
	return &chatFrames{e: e, job: j, q: q, head: chunkHead(id, "chat.completion.chunk", created, q.model)}
}

// chunkHead is how every chunk of a stream begins.
func chunkHead(id, object string, created int64, model string) []byte {
	b := appendString([]byte(`data: {"id":`), id)
	b = append(b, `,"object":"`...)
	b = append(b, object...)
	b = append(b, `","created":`...)
	b = appendInt(b, int(created))
	b = append(b, `,"model":`...)
	b = appendString(b, model)
	return append(b, `,"choices":[`...)
}

func (f *chatFrames) open(buf []byte) []byte {
	for i := range f.job.seqs {
		buf = append(append(buf, f.head...), `{"index":`...)
		buf = appendInt(buf, i)
		buf = append(buf, `,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]`...)
		buf = f.progress(buf, i, 0)
		buf = append(buf, `,"prompt_token_ids":`...)
		if f.q.returnIDs {
			buf = appendIDs(buf, f.job.seqs[i].prompt)
		} else {
			buf = append(buf, "null"...)
		}
		buf = append(buf, `,"prompt_text":null}`+"\n\n"...)
	}
	return buf
}

// progress appends the usage so far where every chunk has it.
func (f *chatFrames) progress(buf []byte, i, done int) []byte {
	if !f.q.includeUsage || !f.q.continuous {
		return buf
	}
	buf = appendUsage(append(buf, ','), len(f.job.seqs[i].prompt), done)
	return append(buf, `,"completion_tokens_details":null}`...)
}

func (f *chatFrames) token(buf []byte, i, at int, finish string) []byte {
	s, upto := f.job.seqs[i], after(at, finish)
	buf = append(append(buf, f.head...), `{"index":`...)
	buf = appendInt(buf, i)
	buf = append(buf, `,"delta":{"content":"`...)
	buf = s.out.appendText(buf, at, upto)
	buf = append(buf, `"},"logprobs":null,"finish_reason":`...)
	buf = appendFinish(buf, s, finish, false)
	buf = append(buf, `,"token_ids":`...)
	buf = appendTokenID(buf, s, at, finish, f.q.returnIDs)
	buf = append(buf, `}]`...)
	buf = f.progress(buf, i, upto)
	if finish != "" && !f.q.includeUsage {
		buf = appendFingerprint(buf, f.e)
	}
	return append(buf, "}\n\n"...)
}

// after is the count of tokens once the one at is sent; an abort has none.
func after(at int, finish string) int {
	if finish == "abort" {
		return at
	}
	return at + 1
}

// appendFinish appends a finish_reason and the stop_reason that goes with it;
// some chunks have the second one always.
func appendFinish(buf []byte, s *sequence, finish string, always bool) []byte {
	switch {
	case finish != "":
		buf = appendString(buf, finish)
	case always:
		return append(buf, `null,"stop_reason":null`...)
	default:
		return append(buf, "null"...)
	}
	buf = append(buf, `,"stop_reason":`...)
	if stop := s.stopReason(); stop != nil {
		return appendString(buf, *stop)
	}
	return append(buf, "null"...)
}

// appendTokenID appends the id of one output token as a list, or null.
func appendTokenID(buf []byte, s *sequence, at int, finish string, want bool) []byte {
	if !want || finish == "abort" {
		return append(buf, "null"...)
	}
	return appendIDs(buf, []uint32{s.out.token(at)})
}

func appendFingerprint(buf []byte, e *Engine) []byte {
	buf = append(buf, `,"system_fingerprint":"`...)
	buf = append(buf, e.fingerprint...)
	return append(buf, '"')
}

func (f *chatFrames) close(buf []byte) []byte {
	if f.q.includeUsage {
		t := f.job.tally(f.q.n)
		buf = append(append(buf, f.head...), `],`...)
		buf = appendUsage(buf, t.prompt, t.completion)
		buf = append(buf, `,"prompt_tokens_details":{"cached_tokens":`...)
		buf = appendInt(buf, t.cached)
		buf = append(buf, `,"created_cache_tokens":`...)
		buf = appendInt(buf, t.created)
		buf = append(buf, "}}"...)
		buf = appendFingerprint(buf, f.e)
		buf = append(buf, "}\n\n"...)
	}
	return append(buf, doneFrame...)
}
