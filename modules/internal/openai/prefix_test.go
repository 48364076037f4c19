package openai

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// prefixOf returns what Prefix hands out, in one piece.
func prefixOf(t *testing.T, body string) string {
	t.Helper()
	f := mustScan(t, []byte(body))
	var all bytes.Buffer
	f.Prefix([]byte(body), func(b []byte) { all.Write(b) })
	return all.String()
}

// common returns how many bytes two texts begin with alike.
func common(a, b string) (n int) {
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// TestPrefixGoesOn: a request that continues another begins with all of it.
func TestPrefixGoesOn(t *testing.T) {
	first := `{"role":"system","content":"be kind"},{"role":"user","content":"hi"}`
	next := first + `,{"role":"assistant","content":"ho"},{"role":"user","content":"and?"}`
	tools := `,"tools":[{"type":"function","function":{"name":"f"}}]`
	for name, bodies := range map[string][2]string{
		"messages":  {`{"model":"m","messages":[` + first + `]}`, `{"model":"m","messages":[` + next + `]}`},
		"tools":     {`{"model":"m","messages":[` + first + `]` + tools + `}`, `{"model":"m","messages":[` + next + `]` + tools + `}`},
		"reordered": {`{"model":"m","messages":[` + first + `]` + tools + `}`, `{"temperature":1` + tools + `,"messages":[` + next + `],"model":"m"}`},
		"anthropic": {`{"model":"m","messages":[` + first + `],"system":"x"}`, `{"model":"m","system":"x","messages":[` + next + `]}`},
		"prompt":    {`{"model":"m","prompt":"` + strings.Repeat("a", 99) + `"}`, `{"model":"m","stream":true,"prompt":"` + strings.Repeat("a", 99) + `bbb"}`},
		"responses": {`{"model":"m","instructions":"x","input":[` + first + `]}`, `{"model":"m","input":[` + next + `],"instructions":"x"}`},
	} {
		a, b := prefixOf(t, bodies[0]), prefixOf(t, bodies[1])
		if n := common(a, b); n < len(a)-len(`]`)-len(partEnds) {
			t.Errorf("%s: they part at %d of %d: %q and %q", name, n, len(a), a, b)
		}
	}
}

// TestPrefixParts: what makes another prompt of the same messages makes another beginning.
func TestPrefixParts(t *testing.T) {
	messages := `"messages":[{"role":"user","content":"hi"}]`
	seen := make(map[string]string)
	for _, body := range []string{
		`{"model":"m",` + messages + `}`,
		`{"model":"m",` + messages + `,"tools":[]}`,
		`{"model":"m",` + messages + `,"tools":[{}]}`,
		`{"model":"m",` + messages + `,"chat_template_kwargs":{"enable_thinking":false}}`,
		`{"model":"m",` + messages + `,"reasoning_effort":"high"}`,
		`{"model":"m",` + messages + `,"system":"[]"}`,
	} {
		p := prefixOf(t, body)
		if n := 8; len(p) < n {
			t.Fatalf("%s: %q", body, p)
		} else if other := seen[p[:n]]; other != "" {
			t.Errorf("%s begins like %s", body, other)
		}
		seen[p[:8]] = body
	}
}

// TestB02_PrefixIsAsWritten: what the gateway changes of a body is no part of it, and characters
// are as the client wrote them.
func TestB02_PrefixIsAsWritten(t *testing.T) {
	content := `"messages":[{"role":"system","content":"<b>&amp;\u003c/b>"}]`
	want := prefixOf(t, `{"model":"m",`+content+`}`)
	if !strings.Contains(want, `<b>&amp;\u003c/b>`) {
		t.Errorf("it is %q", want)
	}
	for _, other := range []string{`{"model":"an-alias","stream":true,`, `{"cache_salt":"x","user":"u","priority":3,"model":"m","max_tokens":3,`} {
		if got := prefixOf(t, other+content+`}`); got != want {
			t.Errorf("%s...: %q, want %q", other, got, want)
		}
	}
}

// TestB04_PrefixOfAllShapes: each legal shape of content has one.
func TestB04_PrefixOfAllShapes(t *testing.T) {
	body, err := os.ReadFile(filepath.Join("testdata", "bodies", "content_shapes.json"))
	if err != nil {
		t.Fatal(err)
	}
	if p := prefixOf(t, string(body)); len(p) < 200 {
		t.Errorf("it is %q", p)
	}
}

// TestPrefixOfMedia: an image counts by what it shows, and as some hundred tokens.
func TestPrefixOfMedia(t *testing.T) {
	with := func(image string) string {
		return prefixOf(t, `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"what is this?"},`+
			`{"type":"image_url","image_url":{"url":"data:image/png;base64,`+image+`"}}]}]}`)
	}
	a, b := strings.Repeat("A", 1<<20), strings.Repeat("B", 1<<20)
	if p := with(a); p != with(a) || len(p) > 2*mediaWeight || len(p) < mediaWeight {
		t.Errorf("the same image twice, of %d bytes", len(p))
	}
	if n := common(with(a), with(b)); n > 150 {
		t.Errorf("two images are alike for %d bytes", n)
	}
}
