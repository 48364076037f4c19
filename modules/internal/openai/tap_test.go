package openai

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
)

// chunks is an engine's stream that comes in the given pieces, and then ends with err.
type chunks struct {
	pieces [][]byte
	err    error // io.EOF if nil
	closed int
}

func (c *chunks) Read(p []byte) (int, error) {
	if len(c.pieces) == 0 {
		if c.err != nil {
			return 0, c.err
		}
		return 0, io.EOF
	}
	n := copy(p, c.pieces[0])
	if c.pieces[0] = c.pieces[0][n:]; len(c.pieces[0]) == 0 {
		c.pieces = c.pieces[1:]
	}
	return n, nil
}

func (c *chunks) Close() error { c.closed++; return nil }

// every cuts b into pieces of n bytes.
func every(b []byte, n int) [][]byte {
	var pieces [][]byte
	for len(b) > n {
		pieces, b = append(pieces, b[:n]), b[n:]
	}
	return append(pieces, b)
}

// readAll reads a tap over the pieces to its clean end.
func readAll(t testing.TB, opt TapOptions, pieces ...[]byte) (string, Result) {
	t.Helper()
	tap := NewTap(&chunks{pieces: slices.Clone(pieces)}, opt)
	out, err := io.ReadAll(tap)
	if err != nil {
		t.Fatalf("read: %v", err)
	}
	r := tap.Result()
	if err := tap.Close(); err != nil {
		t.Fatal(err)
	}
	if int64(len(out))+r.Withheld != r.Bytes {
		t.Fatalf("%d bytes given and %d withheld of %d", len(out), r.Withheld, r.Bytes)
	}
	opt.OnFirst = nil // has been called
	tap = NewTap(&chunks{pieces: slices.Clone(pieces)}, opt)
	if next, err := nextAll(t, tap); err != nil || next != string(out) || tap.Result() != r {
		t.Fatalf("Next gave %q, %+v, %v, and Read %q, %+v", next, tap.Result(), err, out, r)
	}
	return string(out), r
}

// nextAll reads all without copies.
func nextAll(t testing.TB, tap *Tap) (string, error) {
	t.Helper()
	var out []byte
	for {
		b, err := tap.Next()
		if len(b) == 0 && err == nil {
			t.Fatal("Next gave nothing")
		}
		out = append(out, b...)
		if errors.Is(err, io.EOF) {
			return string(out), nil
		}
		if err != nil {
			return string(out), err
		}
	}
}

// eachCut runs check over the whole stream, over single bytes, over every two pieces, and over
// small pieces.
func eachCut(t *testing.T, stream []byte, check func(t *testing.T, pieces ...[]byte)) {
	t.Helper()
	check(t, stream)
	for _, n := range []int{1, 2, 3, 7, 100} {
		check(t, every(stream, n)...)
	}
	for i := 1; i < len(stream); i++ {
		check(t, stream[:i], stream[i:])
	}
}

const doneEvent = "data: [DONE]\n\n"

var withhold = TapOptions{WithholdUsage: true, WithholdDone: true}

func TestS01_CharactersCutBetweenReads(t *testing.T) {
	stream := testdata(t, "sse/utf8.sse")
	for _, opt := range []TapOptions{{}, withhold} {
		eachCut(t, stream, func(t *testing.T, pieces ...[]byte) {
			out, r := readAll(t, opt, pieces...)
			if out != string(stream) {
				t.Fatalf("%d pieces: the bytes changed: %q", len(pieces), out)
			}
			if r.Events != 3 || r.Finish != "stop" || !r.Done || !r.Complete || r.HaveUsage {
				t.Fatalf("%d pieces: %+v", len(pieces), r)
			}
		})
	}
}

func TestS02_LongLines(t *testing.T) {
	for _, size := range []int{70 << 10, 11 << 17, 4 << 20} {
		text := strings.Repeat("x", size)
		long := `data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"` + text + `"}}]},"finish_reason":null}]}` + "\n\n"
		last := `data: {"choices":[{"index":0,"delta":{"content":"` + text + `"},"finish_reason":"stop"}],"usage":null}` + "\n\n"
		usage := `data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":9}}` + "\n\n"
		stream := long + last + usage + doneEvent
		for _, piece := range []int{1000, 32 << 10, 1 << 20} {
			firsts := 0
			opt := TapOptions{WithholdUsage: true, OnFirst: func() { firsts++ }}
			tap := NewTap(&chunks{pieces: every([]byte(stream), piece)}, opt)
			out, err := io.ReadAll(tap)
			if err != nil || string(out) != long+last+doneEvent {
				t.Fatalf("%d in pieces of %d: %v, %d bytes of %d", size, piece, err, len(out), len(stream))
			}
			if len(tap.buf) > maxEvent {
				t.Errorf("the stream has %d bytes of memory, want at most %d", len(tap.buf), maxEvent)
			}
			r := tap.Result()
			if r.Usage != (Usage{Prompt: 7, Completion: 9}) || r.Finish != "stop" || r.Events != 2 || !r.Complete || firsts != 1 {
				t.Errorf("%d in pieces of %d: %+v, %d firsts", size, piece, r, firsts)
			}
			plain, p := readAll(t, TapOptions{}, every([]byte(stream), piece)...)
			if plain != stream || p.Usage != r.Usage || p.Events != 2 {
				t.Errorf("plain: %d bytes of %d, %+v", len(plain), len(stream), p)
			}
		}
	}
}

// A Responses stream repeats all of the answer in its last event, usage at the end; its first event
// repeats the request. Neither fits the buffer here.
func TestS02_LongResponsesEvents(t *testing.T) {
	text := strings.Repeat(`say \"usage\":{\"input_tokens\":5} `, 5000)
	created := "event: response.created\ndata: {\"response\":{\"instructions\":\"" + text + "\",\"usage\":null},\"type\":\"response.created\"}\n\n"
	delta := "event: response.output_text.delta\ndata: {\"delta\":\"a\",\"type\":\"response.output_text.delta\"}\n\n"
	done := "event: response.completed\ndata: {\"response\":{\"output\":[{\"text\":\"" + text + "\"}],\"usage\":{\"input_tokens\":11,\"output_tokens\":12}},\"type\":\"response.completed\"}\n\n"
	stream := created + delta + done
	for _, piece := range []int{999, 1 << 20} {
		var atFirst int64
		var tap *Tap
		tap = NewTap(&chunks{pieces: every([]byte(stream), piece)}, TapOptions{OnFirst: func() { atFirst = tap.Result().Bytes }})
		out, err := io.ReadAll(tap)
		r := tap.Result()
		if err != nil || string(out) != stream || r.Usage != (Usage{Prompt: 11, Completion: 12}) || !r.Done || !r.Complete || r.Events != 1 {
			t.Errorf("pieces of %d: %v, %d bytes of %d, %+v", piece, err, len(out), len(stream), r)
		}
		if atFirst < int64(len(created)) {
			t.Errorf("first token after %d bytes, within the first event of %d", atFirst, len(created))
		}
	}
}

func TestS03_LineEndsAndBlanks(t *testing.T) {
	base := string(testdata(t, "sse/crlf_nospace.sse"))
	lf := strings.ReplaceAll(base, "\r\n", "\n")
	spaced := strings.ReplaceAll(lf, "data:", "data: ")
	cut := strings.Index(base, "\r\n\r\n") + 4
	forms := map[string]string{
		"CRLF":          base,
		"LF":            lf,
		"CRLF and SP":   strings.ReplaceAll(spaced, "\n", "\r\n"),
		"LF and SP":     spaced,
		"CR":            strings.ReplaceAll(lf, "\n", "\r"),
		"mixed":         base[:cut] + spaced[strings.Index(spaced, "\n\n")+2:],
		"mixed in line": strings.Replace(lf, "\n\n", "\n\r", 1),
		"two data":      strings.Replace(lf, `"choices":[],`, "\"choices\":\ndata:[],", 1),
	}
	for name, stream := range forms {
		t.Run(name, func(t *testing.T) {
			start := strings.Index(stream, "data:[DONE]")
			if start < 0 {
				start = strings.Index(stream, "data: [DONE]")
			}
			usage := strings.LastIndex(stream[:start], `"finish_reason":"stop"}]}`)
			usage += strings.Index(stream[usage:], "data:")
			want := stream[:usage] + stream[start:]
			eachCut(t, []byte(stream), func(t *testing.T, pieces ...[]byte) {
				out, r := readAll(t, TapOptions{}, pieces...)
				if out != stream {
					t.Fatalf("%d pieces: the bytes changed: %q", len(pieces), out)
				}
				if r.Usage != (Usage{Prompt: 11, Completion: 3}) || r.Events != 3 || r.Finish != "stop" || !r.Complete {
					t.Fatalf("%d pieces: %+v", len(pieces), r)
				}
				held, h := readAll(t, withhold, pieces...)
				if h.Usage != r.Usage {
					t.Fatalf("%d pieces: withholding: %+v", len(pieces), h)
				}
				if held != want {
					t.Fatalf("%d pieces: got\n%q, want\n%q", len(pieces), held, want)
				}
			})
		})
	}
}

func TestS04_CommentsAreNoTokens(t *testing.T) {
	stream := testdata(t, "sse/comments.sse")
	first := bytes.Index(stream, []byte("data:"))
	usage := bytes.Index(stream, []byte(`data: {"id":"cmpl-t1","object":"chat.completion.chunk","created":1790000000,"model":"org/Tiny-1B","choices":[]`))
	want := string(stream[:usage]) + doneEvent
	eachCut(t, stream, func(t *testing.T, pieces ...[]byte) {
		var tap *Tap
		var atFirst int64
		opt := TapOptions{WithholdUsage: true, OnFirst: func() { atFirst = tap.Result().Bytes }}
		tap = NewTap(&chunks{pieces: pieces}, opt)
		out, err := io.ReadAll(tap)
		r := tap.Result()
		if err != nil || string(out) != want {
			t.Fatalf("%d pieces: %v\n%q, want\n%q", len(pieces), err, out, want)
		}
		if atFirst <= int64(first) || r.Events != 2 || r.Usage.Prompt != 11 || !r.Complete {
			t.Fatalf("%d pieces: first token after %d bytes, %+v", len(pieces), atFirst, r)
		}
	})
	for _, ping := range []string{": ping\n\n", ":\n", ":x\r\n"} {
		tap := NewTap(&chunks{pieces: [][]byte{[]byte(ping), []byte(doneEvent)}}, withhold)
		p := make([]byte, 100)
		if n, err := tap.Read(p); err != nil || string(p[:n]) != ping {
			t.Errorf("a comment was not passed at once: %q, %v", p[:n], err)
		}
	}
}

func TestS05_EmptyAndNullChoices(t *testing.T) {
	base := string(testdata(t, "sse/usage_tail.sse"))
	for _, choices := range []string{"[]", "null", "[ ]"} {
		stream := strings.Replace(base, `"choices":[],`, `"choices":`+choices+`,`, 1)
		eachCut(t, []byte(stream), func(t *testing.T, pieces ...[]byte) {
			out, r := readAll(t, TapOptions{}, pieces...)
			if out != stream || r.Usage != (Usage{2006, 136, 1920, 31}) || r.Events != 1 || r.Finish != "stop" || !r.Complete {
				t.Fatalf("choices %s: %+v\n%s", choices, r, out)
			}
		})
	}
}

func TestS06_UsageIsWithheldOnlyWhenNotAskedFor(t *testing.T) {
	stream := testdata(t, "sse/usage_tail.sse")
	events := bytes.SplitAfter(stream, []byte("\n\n"))
	without := string(bytes.Join(append(append([][]byte{}, events[:3]...), events[4:]...), nil))
	for body, want := range map[string]string{
		`{"model":"m","stream":true}`:                                            without,
		`{"model":"m","stream":true,"stream_options":{"include_usage":false}}`:   without,
		`{"model":"m","stream":true,"stream_options":{"include_usage":true}}`:    string(stream),
		`{"model":"m","stream":true,"stream_options":{"include_usage":"maybe"}}`: string(stream),
	} {
		f := mustScan(t, []byte(body))
		opt := TapOptions{WithholdUsage: f.CanInjectUsage([]byte(body))}
		eachCut(t, stream, func(t *testing.T, pieces ...[]byte) {
			out, r := readAll(t, opt, pieces...)
			if out != want {
				t.Fatalf("%s, %d pieces: got\n%s", body, len(pieces), out)
			}
			if r.Usage != (Usage{2006, 136, 1920, 31}) || !r.HaveUsage {
				t.Fatalf("%s: %+v", body, r)
			}
		})
	}
}

// Events that have usage and are still not the extra chunk.
func TestWithholdPassesEverythingElse(t *testing.T) {
	for _, event := range []string{
		`{"choices":[{"index":0,"delta":{"content":"a"}}],"usage":{"prompt_tokens":1}}`,
		`{"usage":{"prompt_tokens":1},"choices":[{"index":0,"delta":{}}]}`,
		`{"choices":[],"usage":null,"prompt_filter_results":[]}`,
		`{"choices":[]}`,
		`{"usage":{"prompt_tokens":1}}`,
		`{"choices":[],"usage":{"prompt_tokens":1},"error":{"message":"m"}}`,
		`{"choices":[],"usage":{"prompt_tokens":1}`,
		`{"x":{"choices":[],"usage":{"prompt_tokens":1}}}`,
		`{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":2}}`,
		`[{"choices":[],"usage":{"prompt_tokens":1}}]`,
		`{"x":"\"choices\":[],\"usage\":{}"}`,
		`{`, ``, ` `, `hello`, `[DONE]`,
	} {
		stream := []byte("data: " + event + "\n\ndata: {\"choices\":[]}\n\n")
		eachCut(t, stream, func(t *testing.T, pieces ...[]byte) {
			if out, _ := readAll(t, withhold, pieces...); out != string(stream) {
				t.Fatalf("%s: %d pieces: got %q", event, len(pieces), out)
			}
		})
	}
	named := []byte("event: x\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":1}}\n\n")
	if out, _ := readAll(t, withhold, named); out != string(named) {
		t.Errorf("a named event was withheld: %q", out)
	}
}

func TestWithholdDropsTheWholeEvent(t *testing.T) {
	usage := `{"choices":[],"usage":{"prompt_tokens":1}}`
	for _, form := range []string{
		"data: %s\n\n", "id: 7\ndata: %s\nretry: 1\n\n", "event: message\ndata:%s\r\n\r\n", "event\nx\ndata:%s\r\r", "data: %s",
	} {
		stream := []byte(": ping\n" + fmt.Sprintf(form, usage))
		eachCut(t, stream, func(t *testing.T, pieces ...[]byte) {
			if out, _ := readAll(t, withhold, pieces...); out != ": ping\n" {
				t.Fatalf("%q in %d pieces: got %q", stream, len(pieces), out)
			}
		})
	}
}

// brokenEvent is a BreakEvent.
func brokenEvent(error) []byte {
	e := NewError(502, "", CodeStreamBroken, "the replica broke off the stream")
	return append(e.AppendJSON([]byte("data: "), false), "\n\n"...)
}
