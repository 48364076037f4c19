package openai

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
)

func testdata(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func mustScan(t testing.TB, body []byte) Fields {
	t.Helper()
	f, err := Scan(body)
	if err != nil {
		t.Fatalf("Scan(%.200q): %v", body, err)
	}
	return f
}

// wantError checks that err is an *Error of status 400 about param, and returns its message.
func wantError(t testing.TB, err error, param string) string {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("error = %v, want an *Error", err)
	}
	if e.Status != http.StatusBadRequest || e.Type != TypeInvalidRequest || e.Param != param {
		t.Errorf("error = %d %s param %q (%s), want 400 %s param %q", e.Status, e.Type, e.Param, e.Message, TypeInvalidRequest, param)
	}
	return e.Message
}

func TestScanFields(t *testing.T) {
	body := []byte(` {"messages": [{"role":"user","content":"hi"}], "model" : "org\/A\u0042", "stream": true,
		"stream_options": {"x": 1, "include_usage": false}, "max_tokens": 9, "n": 2, "user": "u\n1",
		"priority": -3, "cache_salt": "s", "tools": []} `)
	f := mustScan(t, body)
	if f.Model != "org/AB" || string(f.ModelSpan.Of(body)) != `"org\/A\u0042"` {
		t.Errorf("model %q, raw %s", f.Model, f.ModelSpan.Of(body))
	}
	if !f.Stream || f.WantsUsage || string(f.IncludeUsage.Of(body)) != "false" ||
		string(f.StreamOptions.Of(body)) != `{"x": 1, "include_usage": false}` {
		t.Errorf("stream %v, wants %v, %q in %q", f.Stream, f.WantsUsage, f.IncludeUsage.Of(body), f.StreamOptions.Of(body))
	}
	if f.MaxTokens != 9 || !f.HasMaxTokens || f.N != 2 || !f.HasN || f.User != "u\n1" {
		t.Errorf("counts and user: %+v", f)
	}
	if string(f.Priority.Of(body)) != "-3" || string(f.CacheSalt.Of(body)) != `"s"` {
		t.Errorf("priority %q, salt %q", f.Priority.Of(body), f.CacheSalt.Of(body))
	}
	p := f.Prompt()
	if len(p) != 2 || string(p[0].Of(body)) != `[{"role":"user","content":"hi"}]` || string(p[1].Of(body)) != "[]" {
		t.Errorf("prompt spans %v", p)
	}
	if want := len(p[0].Of(body)) + 2; f.PromptBytes != want || f.MediaBytes != 0 {
		t.Errorf("prompt of %d bytes and media of %d, want %d and 0", f.PromptBytes, f.MediaBytes, want)
	}
}

func TestScanRefuses(t *testing.T) {
	for _, tt := range []struct{ body, param, message string }{
		{"", "", "empty"},
		{" \n", "", "empty"},
		{"[]", "", "must be a JSON object"},
		{`"model"`, "", "must be a JSON object"},
		{"\ufeff{}", "", "must be a JSON object"},
		{"{", "", "unexpected end at byte 1"},
		{"{}", "model", "you must provide a model parameter"},
		{`{"model":"m"} x`, "", "at byte 14"},
		{`{"model":"m"}{"model":"m"}`, "", "at byte 13"},
		{`{"model":"m",}`, "", "unexpected character at byte 13"},
		{`{"model":"m" "n":1}`, "", "unexpected character at byte 13"},
		{`{"model":"m","messages":[`, "", "unexpected end at byte 25"},
		{`{"model":"m","a":"b` + "\n" + `"}`, "", "control character in a string at byte 19"},
		{`{"model":"m","a":01}`, "", "byte 18"},
		{`{"model":"m","a":1.}`, "", "byte 19"},
		{`{"model":"m","a":1e}`, "", "byte 19"},
		{`{"model":"m","a":-}`, "", "byte 18"},
		{`{"model":"m","a":nul}`, "", "byte 20"},
		{`{"model":"m","a":"\x"}`, "", "byte 19"},
		{`{"model":"m","a":"\u12g4"}`, "", "byte 22"},
		{`{"model":"m","a":[1 2]}`, "", "byte 20"},
		{`{"model":"m","a":{"b" 2}}`, "", "byte 22"},
		{`{"model":"m","a":[}}`, "", "byte 18"},
		{`{"model":"m","a":{b:1}}`, "", "byte 18"},
		{`{"model":"m","a":{"b":1,`, "", "unexpected end at byte 24"},
		{`{"model":"m","a":{"b":1,2}}`, "", "byte 24"},
		{`{"model":"m","a":{"b"`, "", "unexpected end at byte 21"},
		{`{"model":"m","a":{"b` + "\x01" + `":1}}`, "", "control character in a string at byte 20"},
		{`{"model":"m","a":tr`, "", "unexpected end at byte 19"},
		{`{"model":"m","stream_options":{"a":1`, "", "unexpected end at byte 36"},
		{`{"model":"m","stream_options":{"include_usage":tru}}`, "", "byte 50"},
		{`{"model":"m","a":NaN}`, "", "byte 17"},
		{`{'model':'m'}`, "", "byte 1"},
		{`{"model":"m","a":"\`, "", "unexpected end"},
		{`{"model":"m","a":"\u12`, "", "unexpected end"},
		{`{"model":null}`, "model", "must be a string"},
		{`{"model":5}`, "model", "must be a string"},
		{`{"model":["m"]}`, "model", "must be a string"},
		{`{"model":""}`, "model", "empty"},
		{`{"model":"` + strings.Repeat("m", maxModel+1) + `"}`, "model", "longer"},
		{"{\"model\":\"a\xff\"}", "model", "UTF-8"},
		{`{"model":"m","stream":"true"}`, "stream", "true, false or null"},
		{`{"model":"m","stream":1}`, "stream", "true, false or null"},
	} {
		_, err := Scan([]byte(tt.body))
		if message := wantError(t, err, tt.param); !strings.Contains(message, tt.message) {
			t.Errorf("Scan(%.80q) = %q, want it to say %q", tt.body, message, tt.message)
		}
	}
}

func TestScanErrorNeverEchoesTheBody(t *testing.T) {
	for _, body := range []string{
		`{"model":"m","messages":"my secret" secret}`, `{"secret":"secret`, `secret`,
		`{"model":"m","stream":"secret"}`, `{"model":"m"}secret`,
	} {
		if _, err := Scan([]byte(body)); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("Scan(%q) = %v: want an error without the body's text", body, err)
		}
	}
}

func TestScanDepth(t *testing.T) {
	nested := func(levels int) []byte {
		return []byte(`{"model":"m","a":` + strings.Repeat("[", levels) + strings.Repeat("]", levels) + "}")
	}
	if _, err := Scan(nested(maxDepth - 1)); err != nil {
		t.Errorf("%d levels: %v", maxDepth, err)
	}
	_, err := Scan(nested(maxDepth))
	if message := wantError(t, err, ""); !strings.Contains(message, "512 levels") {
		t.Errorf("%d levels: %q", maxDepth+1, message)
	}
	for _, unit := range []string{"[", `{"a":`, `[{"a":`} {
		_, err := Scan([]byte(`{"a":` + strings.Repeat(unit, 32<<20/len(unit))))
		wantError(t, err, "")
	}
}

func TestB01_NumbersKeepTheirText(t *testing.T) {
	body := testdata(t, "bodies/bigint.json")
	got := rewrite(t, body, Rewrite{Model: "org/Big-70B"})
	want := strings.Replace(string(body), `"chat-big"`, `"org/Big-70B"`, 1)
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestB02_HTMLCharactersStay(t *testing.T) {
	body := testdata(t, "bodies/html_chars.json")
	got := rewrite(t, body, Rewrite{Model: "a<b>&c"})
	if want := strings.Replace(string(body), `"chat-big"`, `"a<b>&c"`, 1); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestB03_UnknownFieldsSurvive(t *testing.T) {
	body := testdata(t, "bodies/unknown_fields.json")
	f := mustScan(t, body)
	if !f.Stream || !f.WantsUsage || f.MaxTokens != 64 || f.CanInjectUsage(body) {
		t.Errorf("fields: %+v", f)
	}
	if got := rewrite(t, body, Rewrite{InjectUsage: true}); got != string(body) {
		t.Errorf("a rewrite that is not needed changed the body:\n%s", got)
	}
	want := strings.Replace(string(body), `"chat-big"`, `"m"`, 1)
	if got := rewrite(t, body, Rewrite{Model: "m", InjectUsage: true}); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestB04_ContentShapes(t *testing.T) {
	body := testdata(t, "bodies/content_shapes.json")
	f := mustScan(t, body)
	if f.Stream || f.N != 3 || len(f.Prompt()) != 1 || f.PromptBytes < 300 {
		t.Errorf("fields: %+v", f)
	}
	for _, messages := range []string{"[]", "null", `"text"`, "5"} {
		mustScan(t, []byte(`{"model":"m","messages":`+messages+`}`))
	}
}

func TestB05_DuplicateKeys(t *testing.T) {
	_, err := Scan(testdata(t, "bodies/duplicate_keys.json"))
	wantError(t, err, "model")
	value := map[string]string{"model": `"b"`, "stream": "true", "user": `"u"`, "cache_salt": `"s"`, "stream_options": "{}"}
	for _, key := range []string{
		"model", "stream", "stream_options", "max_tokens", "max_completion_tokens",
		"max_output_tokens", "n", "user", "priority", "cache_salt",
	} {
		v := value[key]
		if v == "" {
			v = "1"
		}
		for _, second := range []string{key, escapeFirst(key), escapeAll(key)} {
			plain, escaped := `"`+key+`":`+v, `"`+second+`":`+v
			for _, pair := range []string{plain + "," + escaped, escaped + "," + plain} {
				body := `{"model":"a",` + pair + `}`
				if key == "model" {
					body = `{` + pair + `}`
				}
				_, err := Scan([]byte(body))
				wantError(t, err, key)
			}
		}
	}
	_, err = Scan([]byte(`{"model":"m","stream_options":{"include_usage":true,"include\u005fusage":false}}`))
	wantError(t, err, "stream_options.include_usage")
	// One key written with escapes is the key itself; other keys may repeat.
	if f := mustScan(t, []byte(`{"\u006dodel":"m","x":1,"x":2,"a":{"model":"z"}}`)); f.Model != "m" {
		t.Errorf("model = %q", f.Model)
	}
}

func escapeFirst(key string) string { return escapeAll(key[:1]) + key[1:] }

func escapeAll(key string) string {
	const hex = "0123456789abcdef"
	var b strings.Builder
	for _, c := range []byte(key) {
		b.WriteString(`\u00` + string(hex[c>>4]) + string(hex[c&15]))
	}
	return b.String()
}

func TestB10_MaxTokens(t *testing.T) {
	want := []struct {
		tokens   int64
		known    bool
		n        int64
		stillPut string
	}{
		{0, true, 0, "0"},
		{0, false, 0, "-1"},
		{10, true, 0, `"10"`},
		{1000, true, 0, "1e3"},
		{0, false, 0, ""},
		{40, true, 0, "40"},
		{40, true, 0, "10"},
		{10, true, 4, "10"},
	}
	for i, r := range gjson.ParseBytes(testdata(t, "bodies/max_tokens.json")).Array() {
		body := []byte(strings.Replace(strings.Replace(r.Raw, "{", `{"model":"a",`, 1), ",}", "}", 1))
		f := mustScan(t, body)
		if f.MaxTokens != want[i].tokens || f.HasMaxTokens != want[i].known || f.N != want[i].n || f.HasN != (want[i].n > 0) {
			t.Errorf("%s: %d %v, n %d %v", body, f.MaxTokens, f.HasMaxTokens, f.N, f.HasN)
		}
		if got := rewrite(t, body, Rewrite{Model: "b"}); !strings.Contains(got, want[i].stillPut) {
			t.Errorf("%s became %s", body, got)
		}
	}
	for text, known := range map[string]int64{
		"null": -1, "1.5": -1, "[]": -1, `""`: -1, `"x"`: -1, "1e400": -1, "true": -1, "10.0": 10,
		"9007199254740993": maxTokensCap, "99999999999999999999999": maxTokensCap,
	} {
		f := mustScan(t, []byte(`{"model":"a","max_completion_tokens":`+text+`,"max_tokens":null}`))
		if f.HasMaxTokens != (known >= 0) || f.MaxTokens != max(known, 0) {
			t.Errorf("max_completion_tokens %s: %d %v", text, f.MaxTokens, f.HasMaxTokens)
		}
	}
}

func TestB07_MediaIsNoPromptText(t *testing.T) {
	base64 := strings.Repeat("iVBORw0KGgo", 1000)
	for _, part := range []string{
		`{"type":"image_url","image_url":{"url":"data:image/png;base64,` + base64 + `"}}`,
		`{"type":"input_audio","input_audio":{"format":"wav", "data" : "` + base64 + `"}}`,
	} {
		body := []byte(`{"model":"m","messages":[{"role":"user","content":[` + part + `,` + part + `]}]}`)
		f := mustScan(t, body)
		if f.MediaBytes < 2*len(base64) || f.PromptBytes > 400 || f.PromptBytes < 100 {
			t.Errorf("%.60s: media %d, prompt %d", part, f.MediaBytes, f.PromptBytes)
		}
	}
	// Text that only talks about data counts as text, whatever its length.
	text := `say \"data:` + strings.Repeat("x", 5000) + ` and \"data\": \"` + strings.Repeat("y", 5000)
	if f := mustScan(t, []byte(`{"model":"m","prompt":"`+text+`"}`)); f.MediaBytes != 0 || f.PromptBytes != len(text)+2 {
		t.Errorf("media %d, prompt %d of %d", f.MediaBytes, f.PromptBytes, len(text)+2)
	}
}

func TestScanUser(t *testing.T) {
	long := strings.Repeat("u", maxUser)
	for raw, want := range map[string]string{
		`"ann"`: "ann", `5`: "", `null`: "", `"\ud800"`: "\uFFFD", "\"a\xff\"": "a\uFFFD", `"` + long + `"`: long,
	} {
		if f := mustScan(t, []byte(`{"model":"m","user":`+raw+`}`)); f.User != want {
			t.Errorf("user %s = %q, want %q", raw, f.User, want)
		}
	}
	hashed := map[string]bool{}
	for _, raw := range []string{long + "a", long + "b", long + "b"} {
		f := mustScan(t, []byte(`{"model":"m","user":"`+raw+`"}`))
		if !strings.HasPrefix(f.User, "sha256:") || len(f.User) != len("sha256:")+64 {
			t.Errorf("a long user became %q", f.User)
		}
		hashed[f.User] = true
	}
	if len(hashed) != 2 {
		t.Errorf("%d hashes of two long users", len(hashed))
	}
}

func TestScanAllocations(t *testing.T) {
	body := chatBody(1, 100<<10)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := Scan(body); err != nil {
			t.Fatal(err)
		}
	}); n > 1 {
		t.Errorf("%v allocations, want the model's string only", n)
	}
}
