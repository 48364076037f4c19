package openai

import (
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var (
	lineEnd   = regexp.MustCompile(`\r\n|\n|\r`)
	hasChoice = regexp.MustCompile(`(^|[^\\])"choices"[ \t\r\n]*:[ \t\r\n]*\[[ \t\r\n]*[^\] \t\r\n]`)
)

// slowWithhold is what withholding usage means, written for clarity: it takes a stream apart with
// encoding/json and puts it together without the usage-only events.
func slowWithhold(stream string) string {
	var out, event strings.Builder
	var data []string
	named := false
	flush := func() {
		if named || event.Len() > maxEvent || len(data) == 0 || !slowUsageOnly(data) {
			out.WriteString(event.String())
		}
		event.Reset()
		data, named = nil, false
	}
	for len(stream) > 0 {
		line, end := stream, ""
		if at := lineEnd.FindStringIndex(stream); at != nil {
			line, end = stream[:at[0]], stream[at[0]:at[1]]
		}
		stream = stream[len(line)+len(end):]
		if strings.HasPrefix(line, ":") && event.Len() == 0 {
			out.WriteString(line + end)
			continue
		}
		event.WriteString(line + end)
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "":
			flush()
		case name == "data":
			data = append(data, value)
		case name == "event":
			named = named || value != "" && value != "message"
		}
	}
	flush()
	return out.String()
}

func slowUsageOnly(data []string) bool {
	text := strings.Join(data, "\n")
	d := json.NewDecoder(strings.NewReader(text))
	if brace, err := d.Token(); err != nil || brace != json.Delim('{') || !json.Valid([]byte(text)) || hasChoice.MatchString(data[0]) {
		return false
	}
	usage, choices := "null", ""
	for d.More() {
		key, err := d.Token()
		var value json.RawMessage
		if err != nil || d.Decode(&value) != nil {
			return false
		}
		switch v := string(value); key {
		case "usage":
			usage = v
		case "choices":
			choices = v
		case "error":
			if v[0] == '{' || v[0] == '"' && v != `""` {
				return false
			}
		case "object":
			if v == `"error"` {
				return false
			}
		case "type":
			if v == `"error"` || v == `"response.failed"` {
				return false
			}
		case "response", "message":
			if strings.Contains(v, `"error"`) {
				return false
			}
		}
	}
	return usage != "null" && (choices == "null" || choices != "" && choices[0] == '[' && strings.TrimSpace(choices[1:]) == "]")
}

// cutRandomly cuts b into pieces by a seed.
func cutRandomly(b []byte, seed uint64) [][]byte {
	r := rand.New(rand.NewPCG(seed, 1))
	var pieces [][]byte
	for len(b) > 0 {
		n := 1 + r.IntN(min(len(b), 1+r.IntN(1+r.IntN(300))))
		pieces, b = append(pieces, b[:n]), b[n:]
	}
	return pieces
}

func checkTap(t *testing.T, stream []byte, seed uint64) {
	t.Helper()
	plain, p := readAll(t, TapOptions{}, cutRandomly(stream, seed)...)
	if plain != string(stream) {
		t.Fatalf("plain: the bytes changed\n%q\n%q", stream, plain)
	}
	whole, w := readAll(t, TapOptions{WithholdUsage: true}, stream)
	if want := slowWithhold(string(stream)); whole != want {
		t.Fatalf("withholding from\n%q gave\n%q, want\n%q", stream, whole, want)
	}
	both, b := readAll(t, withhold, stream)
	for i := range uint64(3) {
		pieces := cutRandomly(stream, seed+i)
		got, g := readAll(t, TapOptions{WithholdUsage: true}, pieces...)
		if got != whole || g != w {
			t.Fatalf("cut into %q:\n%q %+v, and in one piece\n%q %+v", pieces, got, g, whole, w)
		}
		if got, g := readAll(t, withhold, pieces...); got != both || g != b {
			t.Fatalf("both, cut into %q:\n%q %+v, and in one piece\n%q %+v", pieces, got, g, both, b)
		}
	}
	p.Withheld, w.Withheld, b.Withheld = 0, 0, 0
	if p != w || p != b {
		t.Fatalf("the modes see different things:\n%+v\n%+v\n%+v", p, w, b)
	}
	if want, known := slowRead(string(stream)); known && p != want {
		t.Fatalf("in %q it sees\n%+v, want\n%+v", stream, p, want)
	}
}

func FuzzTap(f *testing.F) {
	for _, name := range []string{
		"utf8", "crlf_nospace", "comments", "usage_tail", "inband_error",
		"vllm_responses_stream", "vllm_messages_stream", "vllm_chat_stream_usage",
	} {
		f.Add(testdata(f, "sse/"+name+".sse"), uint64(1))
	}
	for _, s := range []string{
		"data:{\"choices\":[],\"usage\":{}}\r\rdata:[DONE]", "data\ndata:{\"choices\":null,\ndata:\"usage\":1}\n\n",
		"id:1\r\n\r\n:\n: x\r", "event:message\ndata: {\"usage\":0,\"choices\":[ ]}\n\n\n", "data:{\"error\":{}}\n\ndata: [DONE] \n\n",
		"data:{\"choices\":[{\"finish_reason\":\"abort\"}]}\n\ndata:[DONE]\n\n", "data:{\"x\":{\"choices\":[1]},\"choices\":[],\"usage\":1}\n\n",
		"data:{\"choices\":[{\"delta\":{\"type\":\"text\"}}]}\n\n", "event:message_delta\ndata:{\"stop_reason\":\"abort\"}\n\n",
		"data:{\"type\":\"response.failed\",\"response\":{\"error\":null}}\n\n", "event:message_stop\ndata:{}\n\n",
		"event:x\ndata:{}\n\n", "data:{\"choices\":[{\"delta\":{\"content\":\"a\",\"reasoning\":\"\"}}]}\n\n",
		"data:{\"usage\":{\"input_tokens\":1,\"cache_read_input_tokens\":2,\"cache_creation_input_tokens\":3,\"output_tokens\":4}}\n\n",
		"data:{\"choices\":[{\"text\":\"a\"}],\"x\":1}\n\ndata:{\"choices\":[{\"text\":\"b\"}],\"x\":1}\n\ndata:{\"choices\":[{\"text\":\"\"}],\"x\":1}\n\ndata:{\"choices\":[{\"text\":\"c\"}],\"error\":{}}\n\n",
	} {
		f.Add([]byte(s), uint64(len(s)))
	}
	f.Fuzz(checkTap)
}

func TestTapProperties(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var b bytes.Buffer
		end := rapid.SampledFrom([]string{"\n", "\n", "\r\n", "\r"})
		for range rapid.IntRange(0, 8).Draw(rt, "lines") {
			b.WriteString(rapid.SampledFrom([]string{
				"", "", "data: ", "data:", ":", ": ping", "id: 3", "event: x", "event:", "data",
				`data: {"choices":[],"usage":{"prompt_tokens":5}}`, `data:{"usage":{"completion_tokens":2},"choices":null}`,
				`data: {"choices":[{"delta":{"content":"é"}}],"usage":null}`, `data: {"choices":[`, `data:],"usage":{}}`,
				`data: [DONE]`, `data: {"error":{"message":"m"}}`, `data: {"choices":[{"finish_reason":"abort"}]}`, `x`,
			}).Draw(rt, "line"))
			b.WriteString(end.Draw(rt, "end"))
			if rapid.Bool().Draw(rt, "blank") {
				b.WriteString(end.Draw(rt, "end"))
			}
		}
		checkTap(t, b.Bytes(), rapid.Uint64().Draw(rt, "seed"))
	})
}

// Events around the limit of what is held back: what is withheld depends on the size alone.
func TestWithholdLimit(t *testing.T) {
	for _, extra := range []int{-2, -1, 0, 1, 2, 100, tailWindow, maxEvent} {
		event := `data: {"choices":[],"x":"`
		tail := `","usage":{"prompt_tokens":3}}` + "\n\n"
		event += strings.Repeat("x", maxEvent+extra-len(event)-len(tail)) + tail
		stream := []byte(tokenEvent + event + doneEvent)
		want := tokenEvent + doneEvent
		if extra > 0 {
			want = string(stream)
		}
		for _, n := range []int{1, 1000, 4096, maxEvent, len(stream)} {
			out, r := readAll(t, TapOptions{WithholdUsage: true}, every(stream, n)...)
			if out != want || r.Usage.Prompt != 3 || !r.Complete {
				t.Errorf("%d bytes beside the limit, pieces of %d: %d bytes of %d, %+v", extra, n, len(out), len(stream), r)
			}
		}
	}
}

// What is held back of an unfinished event never exceeds the limit.
func TestHeldBytesAreBounded(t *testing.T) {
	r, w := io.Pipe()
	tap := NewTap(r, TapOptions{WithholdUsage: true})
	go func() {
		_, _ = io.WriteString(w, `data: {"x":"`)
		for range 100 {
			_, _ = w.Write(bytes.Repeat([]byte("x"), 1000))
		}
		_ = w.CloseWithError(io.ErrUnexpectedEOF)
	}()
	total := 0
	for {
		n, err := tap.Read(make([]byte, 4096))
		if total += n; err != nil {
			break
		}
		if held := tap.Result().Bytes - int64(total); held > maxEvent {
			t.Fatalf("%d bytes are held back", held)
		}
	}
	if total != 100012 {
		t.Errorf("%d bytes came, want all", total)
	}
}
