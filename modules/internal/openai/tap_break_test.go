package openai

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func TestS09_ErrorFrames(t *testing.T) {
	fixture := string(testdata(t, "sse/inband_error.sse"))
	vllm := `data: {"error": {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "param": null, "code": 500}}` + "\n\n"
	for _, tt := range []struct {
		name, stream string
		failed       bool
		events       int64
	}{
		{"after a token", fixture, true, 1},
		{"alone", vllm + doneEvent, true, 0},
		{"string", `data: {"error":"boom"}` + "\n\n" + doneEvent, true, 0},
		{"older vLLM", `data: {"object":"error","message":"boom","type":"BadRequestError","code":400}` + "\n\n" + doneEvent, true, 0},
		{"named", "event: error\ndata: {\"message\":\"boom\"}\n\n" + doneEvent, true, 0},
		{"anthropic", "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"m\"}}\n\n" + doneEvent, true, 0},
		{"responses", "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{\"error\":{\"code\":\"server_error\"}}}\n\n" + doneEvent, true, 0},
		{"null beside a token", `data: {"choices":[{"index":0,"delta":{"content":"a"}}],"error":null}` + "\n\n" + doneEvent, false, 1},
		{"empty beside a token", `data: {"choices":[{"index":0,"delta":{"content":"a"}}],"error":""}` + "\n\n" + doneEvent, false, 1},
		{"only in the text", `data: {"choices":[{"index":0,"delta":{"content":"\"error\":{\"message\":1}"}}]}` + "\n\n" + doneEvent, false, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			eachCut(t, []byte(tt.stream), func(t *testing.T, pieces ...[]byte) {
				out, r := readAll(t, TapOptions{}, pieces...)
				if out != tt.stream {
					t.Fatalf("%d pieces: the bytes changed: %q", len(pieces), out)
				}
				if r.ErrorFrame != tt.failed || r.Complete == tt.failed || r.Events != tt.events || !r.Done {
					t.Fatalf("%d pieces: %+v", len(pieces), r)
				}
				want := tt.stream
				if tt.failed {
					want = strings.TrimSuffix(want, doneEvent)
				}
				if out, _ := readAll(t, withhold, pieces...); out != want {
					t.Fatalf("%d pieces: withholding a false [DONE] gave %q", len(pieces), out)
				}
			})
		})
	}
}

func TestAbortIsNoEnd(t *testing.T) {
	token := `data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}` + "\n\n"
	abort := `data: {"choices":[{"index":0,"delta":{"content":""},"finish_reason":"abort","stop_reason":null}]}` + "\n\n"
	stream := token + abort + doneEvent
	eachCut(t, []byte(stream), func(t *testing.T, pieces ...[]byte) {
		out, r := readAll(t, withhold, pieces...)
		if out != token+abort || !r.Aborted || r.Complete || r.Finish != "abort" || r.Events != 1 {
			t.Fatalf("%d pieces: %+v\n%q", len(pieces), r, out)
		}
	})
	// [DONE] alone is nothing to withhold.
	if out, r := readAll(t, withhold, []byte(token+doneEvent)); out != token+doneEvent || !r.Complete {
		t.Errorf("%+v %q", r, out)
	}
}

// Streams as real engines sent them.
func TestCapturedStreams(t *testing.T) {
	for name, want := range map[string]Result{
		"vllm_chat_stream":                  {Events: 3, Finish: "length"},
		"vllm_chat_stream_usage":            {Events: 3, Finish: "length", HaveUsage: true, Usage: Usage{Prompt: 29, Completion: 5}},
		"vllm_chat_stream_usage_continuous": {Events: 2, Finish: "length", HaveUsage: true, Usage: Usage{Prompt: 29, Completion: 3}},
		"vllm_completions_stream":           {Events: 1, Finish: "length", HaveUsage: true, Usage: Usage{Prompt: 2, Completion: 3}},
		"vllm_responses_stream":             {Events: 2, HaveUsage: true, Usage: Usage{Prompt: 10, Completion: 2}},
		"vllm_messages_stream":              {Events: 2, Finish: "max_tokens", HaveUsage: true, Usage: Usage{Prompt: 10, Completion: 2}},
		"llamacpp_chat_stream_usage":        {Events: 8, Finish: "length", HaveUsage: true, Usage: Usage{Prompt: 36, Completion: 8, Cached: 35}},
	} {
		stream := testdata(t, "sse/"+name+".sse")
		want.Done, want.Complete, want.Bytes = true, true, int64(len(stream))
		for _, pieces := range [][][]byte{{stream}, every(stream, 1), every(stream, 500)} {
			out, r := readAll(t, TapOptions{}, pieces...)
			if out != string(stream) || r != want {
				t.Errorf("%s: %+v, want %+v", name, r, want)
			}
			held, h := readAll(t, withhold, pieces...)
			if strings.Contains(name, "chat_stream_usage") || strings.Contains(name, "completions") {
				if !strings.HasSuffix(held, doneEvent) || h.Withheld == 0 || strings.Contains(held, `"choices":[]`) {
					t.Errorf("%s: withheld %d bytes:\n%s", name, h.Withheld, held)
				}
			} else if held != string(stream) {
				t.Errorf("%s: withheld %d bytes of a stream without a usage chunk", name, h.Withheld)
			}
		}
	}
}

func TestFirstToken(t *testing.T) {
	for payload, content := range map[string]bool{
		`{"choices":[{"delta":{"role":"assistant","content":""}}]}`:        false,
		`{"choices":[{"delta":{"role":"assistant","content":null}}]}`:      false,
		`{"choices":[{"delta":{"role":"assistant"}}]}`:                     false,
		`{"choices":[{"delta":{}}]}`:                                       false,
		`{"choices":[{"delta":null}]}`:                                     false,
		`{"choices":[{"delta":{"tool_calls":[]},"finish_reason":"stop"}]}`: false,
		`{"choices":[]}`:                                        false,
		`{"choices":[{"text":""}]}`:                             false,
		`{"choices":[],"usage":{"prompt_tokens":3}}`:            false,
		`{"type":"ping"}`:                                       false,
		`{"type":"response.created","response":{"usage":null}}`: false,
		`{"type":"content_block_start","content_block":{"type":"text","text":""}}`:              false,
		`{"type":"message_delta","delta":{"stop_reason":"end_turn"}}`:                           false,
		`{"choices":[{"delta":{"content":"a"}}]}`:                                               true,
		`{"choices":[{"delta":{}},{"delta":{"reasoning_content":"a"}},{"delta":{}}]}`:           true,
		`{"choices":[{"delta":{"reasoning":"a"}}]}`:                                             true,
		`{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}`:                                  true,
		`{"choices":[{"text":" a"}]}`:                                                           true,
		`{"type":"response.output_text.delta","delta":"a"}`:                                     true,
		`{"type":"content_block_delta","delta":{"type":"text_delta","text":"a"}}`:               true,
		`{"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"{"}}`: true,
		`{"content":"a","stop":false}`:                                                          true,
		`plain text`:                                                                            true,
	} {
		firsts := 0
		event := []byte("data: " + payload + "\n\n")
		_, r := readAll(t, TapOptions{OnFirst: func() { firsts++ }}, event, event)
		if want := map[bool]int{true: 1}[content]; firsts != want || r.Events != int64(2*want) {
			t.Errorf("%s: %d first tokens, %d events", payload, firsts, r.Events)
		}
	}
}

// A complete event is given before the engine is asked for more, in every mode.
func TestEventsAreNotDelayed(t *testing.T) {
	errNoMore := errors.New("asked for more")
	for _, opt := range []TapOptions{{}, withhold} {
		for _, event := range []string{tokenEvent, ": ping\n\n", "data:x\r\r", "event: a\ndata: {}\n\n", doneEvent} {
			tap := NewTap(&chunks{pieces: [][]byte{[]byte(event)}, err: errNoMore}, opt)
			p := make([]byte, 1024)
			if n, err := tap.Read(p); err != nil || string(p[:n]) != event {
				t.Errorf("%q: first read gave %q, %v", event, p[:n], err)
			}
		}
	}
	// Nor is an unfinished one that cannot be a usage chunk.
	for _, part := range []string{`data: {"id":"x","choices":[{"index":0,`, "data: hello", "event: x\nda", ": pi", `data: {"choices" : [ 1`} {
		tap := NewTap(&chunks{pieces: [][]byte{[]byte(part)}, err: errNoMore}, withhold)
		p := make([]byte, 1024)
		if n, err := tap.Read(p); err != nil || string(p[:n]) != part {
			t.Errorf("%q: first read gave %q, %v", part, p[:n], err)
		}
	}
}

func TestBreak(t *testing.T) {
	token := `data: {"choices":[{"index":0,"delta":{"content":"a"}}]}` + "\n\n"
	broken := string(brokenEvent(nil))
	opt := TapOptions{BreakEvent: brokenEvent}
	holding := TapOptions{BreakEvent: brokenEvent, WithholdUsage: true}
	reset := &net.OpError{Op: "read", Err: errors.New("connection reset by peer")}
	for _, tt := range []struct {
		name, stream string
		opt          TapOptions
		err          error
		want         string
	}{
		{"between events", token, opt, reset, token + broken},
		{"nothing came", "", opt, io.ErrUnexpectedEOF, broken},
		{"within an event", token + `data: {"cho`, opt, reset, token + `data: {"cho` + "\n\n" + broken},
		{"before the blank line", token[:len(token)-1], opt, reset, token[:len(token)-1] + "\n\n" + broken},
		{"within a comment", token + ": pi", holding, reset, token + ": pi\n\n" + broken},
		{"after a comment", token + ": ping\n", holding, reset, token + ": ping\n" + broken},
		{"held back", token + `data: {"cho`, holding, reset, token + broken},
		{"let through", token + token[:40], holding, reset, token + token[:40] + "\n\n" + broken},
		{"client gone", token, opt, fmt.Errorf("read: %w", context.Canceled), token},
		{"timeout", token, opt, context.DeadlineExceeded, token + broken},
		{"no event wanted", token, TapOptions{}, reset, token},
		{"after the end", token + doneEvent, opt, reset, token + doneEvent},
	} {
		t.Run(tt.name, func(t *testing.T) {
			eachCut(t, []byte(tt.stream), func(t *testing.T, pieces ...[]byte) {
				tap := NewTap(&chunks{pieces: slices.Clone(pieces), err: tt.err}, tt.opt)
				out, err := io.ReadAll(iotest.OneByteReader(tap))
				if !errors.Is(err, tt.err) || string(out) != tt.want {
					t.Fatalf("%d pieces: %v, got\n%q, want\n%q", len(pieces), err, out, tt.want)
				}
				if next, err := nextAll(t, NewTap(&chunks{pieces: pieces, err: tt.err}, tt.opt)); !errors.Is(err, tt.err) || next != tt.want {
					t.Fatalf("%d pieces: %v, Next gave\n%q, want\n%q", len(pieces), err, next, tt.want)
				}
				if r := tap.Result(); r.Complete || strings.Contains(string(out), "[DONE]") != r.Done {
					t.Fatalf("%+v", r)
				}
				if n, again := tap.Read(make([]byte, 1)); n != 0 || !errors.Is(again, tt.err) {
					t.Fatalf("another read gave %d, %v", n, again)
				}
			})
		})
	}
	var payload struct{ Error map[string]any }
	text := strings.TrimSuffix(strings.TrimPrefix(broken, "data: "), "\n\n")
	if err := json.Unmarshal([]byte(text), &payload); err != nil || payload.Error["code"] != CodeStreamBroken ||
		payload.Error["type"] != TypeServer || payload.Error["param"] != nil {
		t.Errorf("break event %s: %v", broken, err)
	}
}

func TestTruncatedStreamIsIncomplete(t *testing.T) {
	for stream, complete := range map[string]bool{
		tokenEvent:                                false,
		tokenEvent + doneEvent:                    true,
		tokenEvent + "data: [DONE]":               true,
		"data: {\"type\":\"message_start\"}\n\n":  false,
		"data: {\"content\":\"native\"}\n\n":      true, // no kind of stream that is known to have an end mark
		"":                                        true,
		"data: {\"type\":\"message_stop\"}\n\n":   true,
		"event: message_stop\ndata: {\"type\":1}": true,
		"event: message_start\ndata: {\"type\":1": false,
	} {
		if _, r := readAll(t, TapOptions{}, []byte(stream)); r.Complete != complete {
			t.Errorf("%q: %+v", stream, r)
		}
	}
}

// TestEndOfOtherEvents: an API that is not known may call its last event
// anything. Its streams end as their framing says.
func TestEndOfOtherEvents(t *testing.T) {
	opt := TapOptions{RequireEnd: true, OtherEvents: true, BreakEvent: brokenEvent}
	for _, stream := range []string{
		"data: {\"type\":\"speech.audio.delta\"}\n\ndata: {\"type\":\"speech.audio.done\"}\n\n",
		"event: progress\ndata: {\"x\":1}\n\nevent: result\ndata: {\"y\":2}\n\n",
	} {
		if out, r := readAll(t, opt, []byte(stream)); out != stream || !r.Complete {
			t.Errorf("%q: %q, %+v", stream, out, r)
		}
	}
	out, err := io.ReadAll(NewTap(&chunks{pieces: [][]byte{[]byte(tokenEvent)}}, opt))
	if string(out) != tokenEvent+string(brokenEvent(nil)) || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("choices without an end: %q, %v", out, err)
	}
}

func TestTapCloseAndMisbehavingSource(t *testing.T) {
	src := &chunks{pieces: [][]byte{[]byte(tokenEvent)}}
	tap := NewTap(src, TapOptions{})
	if n, err := tap.Read(nil); n != 0 || err != nil {
		t.Errorf("empty read: %d, %v", n, err)
	}
	for range 2 {
		if err := tap.Close(); err != nil {
			t.Error(err)
		}
	}
	if n, err := tap.Read(make([]byte, 10)); n != 0 || err == nil {
		t.Errorf("read after close: %d, %v", n, err)
	}
	if src.closed == 0 {
		t.Error("the source was not closed")
	}
	tap = NewTap(&chunks{pieces: make([][]byte, 1000)}, TapOptions{})
	if _, err := tap.Read(make([]byte, 10)); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("a source that gives nothing: %v", err)
	}
	want := strings.Repeat(tokenEvent, 50) + doneEvent
	if err := iotest.TestReader(NewTap(&chunks{pieces: every([]byte(want), 61)}, withhold), []byte(want)); err != nil {
		t.Error(err)
	}
}
