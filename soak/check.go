package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// bytesPerToken is the length of each token that a simulated engine puts out.
const bytesPerToken = 4

// expect is what the answer to a request must be.
type expect struct {
	path   string
	stream bool
	usage  bool   // the client asked for the usage of a stream
	tokens int    // all of which come: ignore_eos
	inputs int    // of embeddings
	text   string // names the text: the same request gets the same one
	status []int  // what a request that is wrong must get; nil for a good one
	either []int  // what a good request may get besides
}

// verdict is what an answer was.
type verdict struct {
	outcome string // one of those below
	reason  string // of a failure
	wrong   string // why it is none that may be; "" if it may
}

// The outcomes, in the order in which they are shown.
const (
	outcomeOK      = "whole"
	outcomeRefused = "refused, rightly"
	outcomeLeft    = "left by the client"
	outcomeError   = "error status"
	outcomeEvent   = "stream with an error event"
	outcomeBroken  = "broken off"
	outcomeAborted = "aborted by the engine"
	outcomeLost    = "no answer"
	outcomeWrong   = "WRONG"
)

var outcomes = []string{
	outcomeOK, outcomeRefused, outcomeLeft, outcomeError, outcomeEvent, outcomeBroken, outcomeAborted, outcomeLost, outcomeWrong,
}

func wrong(format string, args ...any) verdict {
	return verdict{outcome: outcomeWrong, wrong: fmt.Sprintf(format, args...)}
}

// check judges a whole answer; err is how its body ended, nil for cleanly.
func (t *texts) check(status int, mediaType string, body []byte, err error, e *expect) verdict {
	switch {
	case status != 200:
		return checkError(status, mediaType, body, err, e)
	case e.status != nil:
		return wrong("200 for a request that is wrong, on %s", e.path)
	case e.stream:
		if mediaType != "text/event-stream; charset=utf-8" {
			return wrong("a stream of the type %q", mediaType)
		}
		return t.checkStream(body, err, e)
	case err != nil:
		return verdict{outcome: outcomeBroken, reason: "whole answer broken off"}
	case mediaType != "application/json":
		return wrong("an answer of the type %q", mediaType)
	case e.inputs > 0:
		return checkEmbeddings(body, e)
	}
	return t.checkAnswer(body, e)
}

// checkError checks that an answer is an error in OpenAI's shape, and one that
// the request may get.
func checkError(status int, mediaType string, body []byte, err error, e *expect) verdict {
	code, ok := errorCode(body)
	switch {
	case err != nil || !ok || mediaType != "application/json":
		return wrong("status %d without an error in OpenAI's shape: %v, %s %.300q", status, err, mediaType, body)
	case slices.Contains(e.status, status):
		return verdict{outcome: outcomeRefused}
	case e.status == nil && slices.Contains(e.either, status):
		return verdict{outcome: outcomeRefused}
	case e.status == nil && (status >= 500 && status <= 504 || status == 429):
		return verdict{outcome: outcomeError, reason: fmt.Sprintf("%d %s", status, code)}
	}
	return wrong("status %d, want one of %v: %.300q", status, e.status, body)
}

// errorCode returns the code of an error, its type where it has none.
func errorCode(body []byte) (code string, ok bool) {
	var v struct {
		Error *struct {
			Message *string
			Type    *string
			Param   json.RawMessage
			Code    json.RawMessage
		}
	}
	if json.Unmarshal(body, &v) != nil || v.Error == nil || v.Error.Message == nil || *v.Error.Message == "" ||
		v.Error.Type == nil || v.Error.Param == nil || v.Error.Code == nil {
		return "", false
	}
	if json.Unmarshal(v.Error.Code, &code) != nil || code == "" {
		code = *v.Error.Type
	}
	return code, true
}

// answer is what is read of an answer, or of an event of a stream.
type answer struct {
	Choices []struct {
		Delta        struct{ Content *string }
		Message      struct{ Content *string }
		Text         *string
		FinishReason string `json:"finish_reason"`
	}
	Usage *struct {
		CompletionTokens int `json:"completion_tokens"`
	}
	Data  []struct{ Embedding []float64 }
	Error json.RawMessage
}

func (t *texts) checkAnswer(body []byte, e *expect) verdict {
	var a answer
	if err := json.Unmarshal(body, &a); err != nil {
		return wrong("an answer that is no JSON: %v in %.300q", err, body)
	}
	if len(a.Choices) != 1 || a.Usage == nil {
		return wrong("an answer without a choice or usage: %.300q", body)
	}
	c := a.Choices[0]
	text := c.Message.Content
	if e.path == pathCompletions {
		text = c.Text
	}
	switch {
	case text == nil:
		return wrong("an answer without a text: %.300q", body)
	case c.FinishReason == "abort":
		return verdict{outcome: outcomeAborted, reason: "whole answer aborted by the engine"}
	case c.FinishReason != "length" || a.Usage.CompletionTokens != e.tokens || len(*text) != e.tokens*bytesPerToken:
		return wrong("%d tokens in %d bytes, %s, want %d: %.300q", a.Usage.CompletionTokens, len(*text), c.FinishReason, e.tokens, body)
	}
	return t.same(*text, e)
}

// vectorSize is the dimension of the engines' vectors.
const vectorSize = 384

func checkEmbeddings(body []byte, e *expect) verdict {
	var a answer
	if err := json.Unmarshal(body, &a); err != nil {
		return wrong("embeddings that are no JSON: %v in %.300q", err, body)
	}
	if len(a.Data) != e.inputs {
		return wrong("%d embeddings, want %d", len(a.Data), e.inputs)
	}
	for _, d := range a.Data {
		if len(d.Embedding) != vectorSize {
			return wrong("an embedding of %d numbers", len(d.Embedding))
		}
	}
	return verdict{outcome: outcomeOK}
}

// checkStream judges a stream by its events.
func (t *texts) checkStream(body []byte, err error, e *expect) verdict {
	var text strings.Builder
	events, usages, done, finish, failure := 0, 0, false, "", ""
	rest := body
	for {
		event, after, whole := bytes.Cut(rest, []byte("\n\n"))
		if !whole {
			break
		}
		rest = after
		data, isData := bytes.CutPrefix(event, []byte("data: "))
		switch {
		case !isData:
			return wrong("an event without data: %.300q", event)
		case done:
			return wrong("something after [DONE]: %.300q", event)
		case string(data) == "[DONE]":
			done = true
			continue
		}
		var a answer
		if err := json.Unmarshal(data, &a); err != nil {
			return wrong("an event that is no JSON: %v in %.300q", err, data)
		}
		if a.Error != nil && string(a.Error) != "null" {
			var ok bool
			if failure, ok = errorCode(data); !ok {
				return wrong("an error event in another shape: %.300q", data)
			}
			continue
		}
		if a.Usage != nil {
			usages++
			if a.Usage.CompletionTokens != e.tokens && finish != "abort" {
				return wrong("a usage of %d tokens, want %d", a.Usage.CompletionTokens, e.tokens)
			}
		}
		for _, c := range a.Choices {
			piece := c.Delta.Content
			if e.path == pathCompletions {
				piece = c.Text
			}
			if piece != nil && *piece != "" {
				events++
				text.WriteString(*piece)
			}
			if c.FinishReason != "" {
				finish = c.FinishReason
			}
		}
	}
	if v := t.same(text.String(), e); v.wrong != "" {
		return v
	}
	switch {
	case done && failure != "":
		return wrong("[DONE] after an error event")
	case done && err != nil && !errors.Is(err, errLeft):
		return wrong("[DONE] and then %v", err)
	case done && (finish != "length" || events != e.tokens || text.Len() != e.tokens*bytesPerToken):
		return wrong("[DONE] after %d of %d tokens, finish_reason %q", events, e.tokens, finish)
	case done && (usages > 1 || e.usage != (usages == 1)):
		return wrong("%d usages, asked for: %v", usages, e.usage)
	case done:
		return verdict{outcome: outcomeOK}
	case failure != "":
		return verdict{outcome: outcomeEvent, reason: "stream: " + failure}
	case err != nil:
		return verdict{outcome: outcomeBroken, reason: "stream broken off without an error event"}
	case finish == "abort":
		return verdict{outcome: outcomeAborted, reason: "stream aborted by the engine"}
	}
	return wrong("a clean end without [DONE] or an error event, after %d of %d tokens, and %.100q", events, e.tokens, rest)
}

// texts are the texts that came so far. What an engine says is a function of the
// prompt, so that answers to the same prompt must begin alike.
type texts struct {
	mu    sync.Mutex
	known map[string]string
}

func newTexts() *texts { return &texts{known: make(map[string]string)} }

func (t *texts) same(text string, e *expect) verdict {
	t.mu.Lock()
	defer t.mu.Unlock()
	known := t.known[e.text]
	n := min(len(known), len(text))
	if known[:n] != text[:n] {
		return wrong("another text than before for %s: %.300q, was %.300q", e.text, text, known)
	}
	if len(text) > len(known) {
		t.known[e.text] = text
	}
	return verdict{outcome: outcomeOK}
}
