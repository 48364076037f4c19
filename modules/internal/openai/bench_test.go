package openai

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
)

// chatBody is a chat request of about size bytes with that many messages.
func chatBody(messages, size int) []byte {
	text := strings.Repeat(`The quick brown fox said \"jump\" over the lazy dog; naïve, isn't it?\n`, size/messages/70+1)
	var b bytes.Buffer
	b.WriteString(`{"model":"org/Name-70B","stream":true,"stream_options":{"include_usage":true},"temperature":0.7,"max_tokens":512,"messages":[`)
	for i := range messages {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"role":"user","content":"%s"}`, text[:strings.LastIndexByte(text[:min(len(text), size/messages+1)], ' ')])
	}
	b.WriteString(`]}`)
	return b.Bytes()
}

var shapes = []struct {
	name string
	body []byte
}{
	{"long_prompt", chatBody(1, 100<<10)},
	{"many_messages", chatBody(1000, 100<<10)},
	{"small", chatBody(2, 300)},
}

func BenchmarkScan100K(b *testing.B) {
	for _, s := range shapes {
		b.Run(s.name, func(b *testing.B) {
			b.SetBytes(int64(len(s.body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Scan(s.body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkGJSONValid100K(b *testing.B) {
	for _, s := range shapes {
		b.Run(s.name, func(b *testing.B) {
			b.SetBytes(int64(len(s.body)))
			b.ReportAllocs()
			for b.Loop() {
				if !gjson.ValidBytes(s.body) {
					b.Fatal("not valid")
				}
			}
		})
	}
}

func BenchmarkSplice(b *testing.B) {
	body := chatBody(1, 100<<10)
	f := mustScan(b, body)
	b.ReportAllocs()
	for b.Loop() {
		var edits [MaxEdits]Edit
		s, err := Splice(body, f.Edits(edits[:0], body, Rewrite{Model: "other", InjectUsage: true}))
		if err != nil {
			b.Fatal(err)
		}
		if _, err := s.NewReader().WriteTo(io.Discard); err != nil {
			b.Fatal(err)
		}
	}
}

const tokenEvent = `data: {"id":"chatcmpl-9fd2d8d9010fbc52","object":"chat.completion.chunk","created":1795952523,"model":"org/Name-70B","choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null,"token_ids":null}]}` + "\n\n"

// eventSource gives one token event a read, n times.
type eventSource struct {
	n     int
	event []byte
}

func (s *eventSource) Read(p []byte) (int, error) {
	if s.n == 0 {
		return 0, io.EOF
	}
	s.n--
	return copy(p, s.event), nil
}

func (s *eventSource) Close() error { return nil }

// drain reads like a proxy that flushes every read.
func drain(b *testing.B, r io.Reader, buf []byte) {
	for {
		if _, err := r.Read(buf); err == io.EOF {
			return
		} else if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkTap measures one token event per iteration.
func BenchmarkTap(b *testing.B) {
	event := []byte(tokenEvent)
	run := func(name string, wrap func(io.ReadCloser) io.Reader) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(event)))
			b.ReportAllocs()
			drain(b, wrap(&eventSource{n: b.N, event: event}), make([]byte, 32<<10))
		})
	}
	run("copy", func(s io.ReadCloser) io.Reader { return s })
	run("plain", func(s io.ReadCloser) io.Reader { return NewTap(s, TapOptions{}) })
	run("withhold", func(s io.ReadCloser) io.Reader {
		return NewTap(s, TapOptions{WithholdUsage: true, WithholdDone: true, BreakEvent: brokenEvent})
	})
	long := bytes.Repeat(event, 14) // many events a read
	b.Run("withhold_14_a_read", func(b *testing.B) {
		b.SetBytes(int64(len(event)))
		b.ReportAllocs()
		drain(b, NewTap(&eventSource{n: b.N/14 + 1, event: long}, TapOptions{WithholdUsage: true}), make([]byte, 32<<10))
	})
}

// BenchmarkTapStream is a whole short answer, with its set-up.
func BenchmarkTapStream(b *testing.B) {
	event := []byte(tokenEvent)
	buf := make([]byte, 32<<10)
	b.ReportAllocs()
	for b.Loop() {
		t := NewTap(&eventSource{n: 100, event: event}, TapOptions{WithholdUsage: true})
		drain(b, t, buf)
		if err := t.Close(); err != nil || t.Result().Events != 100 {
			b.Fatal(err, t.Result())
		}
	}
}
