package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"
)

// rewrite scans, edits and splices, and checks both ways to read the result.
func rewrite(t testing.TB, body []byte, r Rewrite) string {
	t.Helper()
	f := mustScan(t, body)
	return splice(t, body, f.Edits(nil, body, r))
}

func splice(t testing.TB, body []byte, edits []Edit) string {
	t.Helper()
	s, err := Splice(body, edits)
	if err != nil {
		t.Fatal(err)
	}
	read, err := io.ReadAll(iotest.OneByteReader(s.NewReader()))
	if err != nil {
		t.Fatal(err)
	}
	var written bytes.Buffer
	n, err := s.NewReader().WriteTo(&written)
	if err != nil || n != s.Len() || !bytes.Equal(read, written.Bytes()) || int64(len(read)) != s.Len() {
		t.Fatalf("read %d bytes, wrote %d (%v), Len %d: %q and %q", len(read), n, err, s.Len(), read, written.Bytes())
	}
	return string(read)
}

func TestRewrite(t *testing.T) {
	zero, minus := 0, -7
	for _, tt := range []struct {
		name, body string
		r          Rewrite
		want       string
	}{
		{"nothing", `{"model":"a"}`, Rewrite{}, `{"model":"a"}`},
		{"same model", `{"model":"\u0061"}`, Rewrite{Model: "a"}, `{"model":"\u0061"}`},
		{"model", ` { "model" : "a" } `, Rewrite{Model: `q"\` + "\n"}, ` { "model" : "q\"\\\u000a" } `},
		{"no stream", `{"model":"a"}`, Rewrite{InjectUsage: true}, `{"model":"a"}`},
		{"stream null", `{"model":"a","stream":null}`, Rewrite{InjectUsage: true}, `{"model":"a","stream":null}`},
		{"options absent", `{"model":"a","stream":true}`, Rewrite{InjectUsage: true}, `{"stream_options":{"include_usage":true},"model":"a","stream":true}`},
		{"options null", `{"model":"a","stream":true,"stream_options":null}`, Rewrite{InjectUsage: true}, `{"model":"a","stream":true,"stream_options":{"include_usage":true}}`},
		{"options empty", `{"model":"a","stream":true,"stream_options":{ }}`, Rewrite{InjectUsage: true}, `{"model":"a","stream":true,"stream_options":{"include_usage":true }}`},
		{"options other", `{"model":"a","stream":true,"stream_options":{"x":1}}`, Rewrite{InjectUsage: true}, `{"model":"a","stream":true,"stream_options":{"include_usage":true,"x":1}}`},
		{"options false", `{"model":"a","stream":true,"stream_options":{"include_usage":false}}`, Rewrite{InjectUsage: true}, `{"model":"a","stream":true,"stream_options":{"include_usage":true}}`},
		{"options false null", `{"model":"a","stream":true,"stream_options":{"include_usage":null}}`, Rewrite{InjectUsage: true}, `{"model":"a","stream":true,"stream_options":{"include_usage":true}}`},
		{"options true", `{"model":"a","stream":true,"stream_options":{"include_usage":true}}`, Rewrite{InjectUsage: true}, `{"model":"a","stream":true,"stream_options":{"include_usage":true}}`},
		{"options odd value", `{"model":"a","stream":true,"stream_options":{"include_usage":1}}`, Rewrite{InjectUsage: true}, `{"model":"a","stream":true,"stream_options":{"include_usage":1}}`},
		{"options wrong type", `{"model":"a","stream":true,"stream_options":[1]}`, Rewrite{InjectUsage: true}, `{"model":"a","stream":true,"stream_options":[1]}`},
		{"priority and salt in", `{ "model":"a"}`, Rewrite{Priority: &zero, CacheSalt: "<s>"}, `{"priority":0,"cache_salt":"<s>", "model":"a"}`},
		{"priority and salt over", `{"cache_salt":null,"priority":5,"model":"a"}`, Rewrite{Model: "b", Priority: &minus, CacheSalt: "s"}, `{"cache_salt":"s","priority":-7,"model":"b"}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := rewrite(t, []byte(tt.body), tt.r)
			if got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			if again := rewrite(t, []byte(got), tt.r); again != got {
				t.Errorf("the second rewrite changed it again: %s", again)
			}
		})
	}
}

func TestEditsAppendsAndKeepsOrder(t *testing.T) {
	body := []byte(`{"priority":1,"model":"a"}`)
	f := mustScan(t, body)
	before := Edit{Span{99, 99}, []byte("x")}
	p := 2
	edits := f.Edits([]Edit{before}, body, Rewrite{Model: "b", Priority: &p, CacheSalt: "s"})
	if len(edits) != 4 || edits[0].At != before.At {
		t.Fatalf("edits: %v", edits)
	}
	for i := 2; i < len(edits); i++ {
		if edits[i].At.Start < edits[i-1].At.End {
			t.Errorf("edits out of order: %v", edits)
		}
	}
}

func TestSpliceRefuses(t *testing.T) {
	for name, edits := range map[string][]Edit{
		"too many":     make([]Edit, MaxEdits+1),
		"outside":      {{At: Span{2, 4}}},
		"backwards":    {{At: Span{2, 1}}},
		"negative":     {{At: Span{-1, 1}}},
		"out of order": {{At: Span{2, 2}}, {At: Span{1, 1}}},
		"overlap":      {{At: Span{0, 2}}, {At: Span{1, 3}}},
	} {
		if _, err := Splice([]byte("abc"), edits); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if s, err := Splice(nil, nil); err != nil || s.Len() != 0 {
		t.Errorf("empty body: %v, %d bytes", err, s.Len())
	}
}

type shortWriter struct{ left int }

var errFull = errors.New("full")

func (w *shortWriter) Write(p []byte) (int, error) {
	n := min(w.left, len(p))
	w.left -= n
	if n < len(p) {
		return n, errFull
	}
	return n, nil
}

// A write that fails half-way leaves the reader where the writer stopped.
func TestReaderResumesAfterAFailedWrite(t *testing.T) {
	s, err := Splice([]byte("abcdef"), []Edit{{Span{2, 3}, []byte("XY")}})
	if err != nil {
		t.Fatal(err)
	}
	for cut := range 7 {
		r := s.NewReader()
		n, err := r.WriteTo(&shortWriter{left: cut})
		rest, _ := io.ReadAll(r)
		if n != int64(cut) || !errors.Is(err, errFull) || string(rest) != "abXYdef"[cut:] {
			t.Errorf("cut at %d: wrote %d, %v, rest %q", cut, n, err, rest)
		}
	}
}

// genBody draws a request body, with random spaces, key order, escapes and unknown fields.
func genBody(t *rapid.T) []byte {
	space := rapid.SampledFrom([]string{"", "", " ", "\n\t"})
	member := func(key string, values ...string) string {
		if rapid.Bool().Draw(t, "escaped") {
			key = escapeFirst(key)
		}
		return `"` + key + `"` + space.Draw(t, "s") + ":" + space.Draw(t, "s") + rapid.SampledFrom(values).Draw(t, key)
	}
	parts := []string{member("model", `"a"`, `"org\/x"`, `"\u0061\ud83d\ude00"`)}
	for _, part := range []string{
		member("stream", "true", "true", "false", "null"),
		member("stream_options", "{}", "null", `{"include_usage":false}`, `{ "x":[1] , "include_usage" : null}`, `{"include_usage":true}`, "[]", `{"a":{"include_usage":1}}`),
		member("priority", "1", "-2", "null"),
		member("cache_salt", `"s"`, "null"),
		member("messages", `[{"role":"user","content":"a<b & \"c\" \u00e9"}]`, "[]"),
		member("seed", "9007199254740993", "1.0", "1e-7"),
		member("x", `{"model":"inner","stream":true}`, `"}{,"`),
	} {
		if rapid.Bool().Draw(t, "present") {
			parts = append(parts, part)
		}
	}
	parts = rapid.Permutation(parts).Draw(t, "order")
	var b strings.Builder
	b.WriteString(space.Draw(t, "s") + "{" + space.Draw(t, "s"))
	b.WriteString(strings.Join(parts, space.Draw(t, "s")+","+space.Draw(t, "s")))
	b.WriteString(space.Draw(t, "s") + "}" + space.Draw(t, "s"))
	return []byte(b.String())
}

func TestRewriteProperties(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		body := genBody(rt)
		r := Rewrite{
			Model:       rapid.SampledFrom([]string{"", "a", `b<"\` + "\x01é"}).Draw(rt, "model"),
			InjectUsage: rapid.Bool().Draw(rt, "inject"),
			CacheSalt:   rapid.SampledFrom([]string{"", "salt&"}).Draw(rt, "salt"),
		}
		if rapid.Bool().Draw(rt, "prioritised") {
			p := rapid.IntRange(-5, 5).Draw(rt, "priority")
			r.Priority = &p
		}
		checkRewrite(t, body, r)
	})
}

// checkRewrite checks every property of a rewrite of a body that scans.
func checkRewrite(t *testing.T, body []byte, r Rewrite) {
	t.Helper()
	f := mustScan(t, body)
	edits := f.Edits(nil, body, r)
	got := splice(t, body, edits)
	// Outside the edits nothing has changed.
	at, out := 0, 0
	for _, e := range edits {
		n := e.At.Start - at
		if got[out:out+n] != string(body[at:e.At.Start]) || got[out+n:out+n+len(e.With)] != string(e.With) {
			t.Fatalf("bytes around %v differ:\n%s\n%s", e.At, body, got)
		}
		at, out = e.At.End, out+n+len(e.With)
	}
	if got[out:] != string(body[at:]) {
		t.Fatalf("the end differs:\n%s\n%s", body, got)
	}
	if !json.Valid([]byte(got)) {
		t.Fatalf("not JSON any more:\n%s\n%s", body, got)
	}
	g := mustScan(t, []byte(got))
	if want := r.Model; want != "" && g.Model != want {
		t.Fatalf("model %q, want %q", g.Model, want)
	} else if want == "" && g.Model != f.Model {
		t.Fatalf("model changed from %q to %q", f.Model, g.Model)
	}
	if r.InjectUsage && f.CanInjectUsage(body) && !g.WantsUsage {
		t.Fatalf("usage is not asked for: %s", got)
	}
	if !r.InjectUsage && g.WantsUsage != f.WantsUsage || g.Stream != f.Stream {
		t.Fatalf("stream or usage changed: %s", got)
	}
	if again := rewrite(t, []byte(got), r); again != got {
		t.Fatalf("not stable:\n%s\n%s", got, again)
	}
}
