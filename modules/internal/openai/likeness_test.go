package openai

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestLikeness: what is seen of an event must not depend on the one before it.
func TestLikeness(t *testing.T) {
	texts := []string{
		` word`, ``, `x`, `é`, `\"`, `\\`, `\\\"`, `a\`, `"`, `","finish_reason":"stop`, `"},"error":{"a":"b`, `\u00e9`, `\u00`, "\x01", `abort`, `\n\n`,
		`"}}],"usage":{"prompt_tokens":3},"x":[{"d":{"e":"`, strings.Repeat("long ", 300),
	}
	shapes := []string{
		`{"choices":[{"index":0,"delta":{"content":"@"},"finish_reason":null}]}`,
		`{"choices":[{"delta":{"role":"assistant","content":"@"}}]}`,
		`{"choices":[{"delta":{"content":"@"},"finish_reason":"stop"}]}`,
		`{"choices":[{"delta":{"content":"@"},"finish_reason":"@"}]}`,
		`{"choices":[{"delta":{"content":"a"},"finish_reason":"@"}]}`,
		`{"choices":[{"delta":{"content":"a"}},{"delta":{"content":"@"}}]}`,
		`{"choices":[{"delta":{"content":"@"}}],"usage":{"completion_tokens":1}}`,
		`{"choices":[{"text":"@"}]}`,
		`{"choices":[],"usage":null,"x":"@"}`,
		`{"type":"response.output_text.delta","delta":"@"}`,
		`{"type":"@","delta":"a"}`,
		`{"object":"@","delta":"a"}`,
		`{"delta":"a","error":"@"}`,
		`{"delta":{"type":"text_delta","text":"@"}}`,
		`{"delta":{"stop_reason":"@","text":"a"}}`,
		`{"delta":"@"`,
	}
	event := rapid.Custom(func(rt *rapid.T) string {
		return strings.ReplaceAll(rapid.SampledFrom(shapes).Draw(rt, "shape"), "@", rapid.SampledFrom(texts).Draw(rt, "text"))
	})
	see := func(events ...string) Result {
		_, r := readAll(t, TapOptions{}, []byte("data: "+strings.Join(events, "\n\ndata: ")+"\n\n"))
		return r
	}
	rapid.Check(t, func(rt *rapid.T) {
		var l likeness
		for _, e := range rapid.SliceOfN(event, 2, 5).Draw(rt, "events") {
			alone := see(e)
			if l.same([]byte(e)) && (alone.Events != 1 || alone.HaveUsage || alone.Finish != "" || alone.Aborted || alone.ErrorFrame || alone.Done) {
				rt.Fatalf("%q is taken for another text of %q, but it says %+v", e, l.event, alone)
			}
			f := inspect([]byte(e))
			l.learn([]byte(e), &f)
		}
	})
	// And it is of use: what engines send is recognised.
	var l likeness
	f := inspect([]byte(`{"choices":[{"index":0,"delta":{"content":" a"},"finish_reason":null}]}`))
	l.learn([]byte(`{"choices":[{"index":0,"delta":{"content":" a"},"finish_reason":null}]}`), &f)
	if !l.same([]byte(`{"choices":[{"index":0,"delta":{"content":" longer \"text"},"finish_reason":null}]}`)) {
		t.Error("the next token is not recognised")
	}
	if r := see(strings.Fields(strings.Repeat(`{"choices":[{"delta":{"content":"a"}}]} `, 100))...); r.Events != 100 {
		t.Errorf("%d events of 100 counted", r.Events)
	}
}
