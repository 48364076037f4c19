package sim

import (
	"bytes"
	"encoding/json"
)

// usage is the `usage` object of whole answers.
type usage struct {
	Prompt            int           `json:"prompt_tokens"`
	Total             int           `json:"total_tokens"`
	Completion        int           `json:"completion_tokens"`
	PromptDetails     *promptDetail `json:"prompt_tokens_details"`
	CompletionDetails any           `json:"completion_tokens_details"`
}

// promptDetail splits prompt_tokens; completions leave created out.
type promptDetail struct {
	Cached     int  `json:"cached_tokens"`
	Created    *int `json:"created_cache_tokens"`
	Multimodal any  `json:"multimodal_tokens"`
}

// tally is what a job used; each prompt counts once, whatever n is.
type tally struct{ prompt, completion, cached, created int }

func (j *job) tally(n int) tally {
	var t tally
	for i, s := range j.seqs {
		if i%n == 0 {
			t.prompt += len(s.prompt)
			t.cached += s.cached
			t.created += s.created
		}
		produced, _ := s.look()
		t.completion += produced
	}
	return t
}

func (t tally) usage(created bool) usage {
	u := usage{Prompt: t.prompt, Total: t.prompt + t.completion, Completion: t.completion, PromptDetails: &promptDetail{Cached: t.cached}}
	if created {
		u.PromptDetails.Created = &t.created
	}
	return u
}

// appendUsage appends the start of a `usage` object of a stream, up to the
// completion tokens, unclosed.
func appendUsage(dst []byte, prompt, completion int) []byte {
	dst = append(dst, `"usage":{"prompt_tokens":`...)
	dst = appendInt(dst, prompt)
	dst = append(dst, `,"total_tokens":`...)
	dst = appendInt(dst, prompt+completion)
	dst = append(dst, `,"completion_tokens":`...)
	return appendInt(dst, completion)
}

// finishOf is the finish_reason of an ended sequence.
func (s *sequence) finishOf() string {
	if _, end := s.look(); end == endAbort {
		return "abort"
	}
	return s.out.finish
}

// text is the output so far.
func (s *sequence) text() string {
	produced, _ := s.look()
	return string(s.out.appendText(nil, 0, produced))
}

// outputIDs are the ids of the output so far.
func (s *sequence) outputIDs() []uint32 {
	produced, _ := s.look()
	ids := make([]uint32, produced)
	for i := range ids {
		ids[i] = s.out.token(i)
	}
	return ids
}

// stopReason is the stop string that ended s, or nil.
func (s *sequence) stopReason() *string {
	if _, end := s.look(); s.out.stop == "" || end != endDone {
		return nil
	}
	return &s.out.stop
}

// marshal writes v as JSON with non-ASCII and HTML characters as they are.
func marshal(v any) []byte {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // our own types always encode
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n"))
}
