package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tidwall/gjson"
)

func seedBodies(f *testing.F) {
	for _, name := range []string{"bigint", "html_chars", "unknown_fields", "content_shapes", "duplicate_keys", "max_tokens"} {
		f.Add(testdata(f, "bodies/"+name+".json"))
	}
	for _, body := range []string{
		`{"model":"\ud83d\ude00","stream":true,"stream_options":{"\u0069nclude_usage":null}}`, `{"model":"m"}`, " { } ",
		`{"model":"a\/b","user":"u","n":2,"priority":1,"cache_salt":"s","stream_options":{}}`, `{"model":"m","x":[1.5e-7,-0,"\\"]}`,
		`{"model":"m","max_tokens":1,"max_output_tokens":2.0,"n":"3"}`, `{"max_output_tokens":2,"model":"m","max_tokens":1e3,"max_completion_tokens":0.5}`,
		`{"model":"m","messages":[],"prompt":1,"suffix":"","input":{},"system":null,"instructions":"i","tools":[],"query":"q","documents":["d"]}`,
		`{"model":"m","text_1":"a","text_2":"b","texts":[],"queries":["c"],"items":[{"content":[]}],"data_1":"","data_2":[],"user":"\u00e9","stream_options":{"include_usage":false}}`,
		`{"model":"m","messages":[{"content":[{"url":"data:image/png;base64,` + strings.Repeat("A", minMedia) + `"}]}]}`,
	} {
		f.Add([]byte(body))
	}
}

// slowDuplicate finds a routed key that is twice in the body, by encoding/json.
func slowDuplicate(body []byte) bool {
	d := json.NewDecoder(bytes.NewReader(body))
	if _, err := d.Token(); err != nil {
		return false
	}
	seen := map[string]bool{}
	for d.More() {
		key, err := d.Token()
		var value json.RawMessage
		if err != nil || d.Decode(&value) != nil {
			return false
		}
		name := key.(string)
		if k := keyOf([]byte(name)); k != 0 && k != keyPrompt && k != keyTexts {
			if seen[name] {
				return true
			}
			seen[name] = true
		}
		if name == "stream_options" && value[0] == '{' {
			inner := json.NewDecoder(bytes.NewReader(value))
			_, _ = inner.Token()
			count := 0
			for inner.More() {
				key, _ := inner.Token()
				var skipped json.RawMessage
				_ = inner.Decode(&skipped)
				if key == "include_usage" {
					count++
				}
			}
			if count > 1 {
				return true
			}
		}
	}
	return false
}

func depth(body []byte) (deepest int) {
	d, level := json.NewDecoder(bytes.NewReader(body)), 0
	for {
		token, err := d.Token()
		if err != nil {
			return deepest
		}
		switch token {
		case json.Delim('{'), json.Delim('['):
			level++
			deepest = max(deepest, level)
		case json.Delim('}'), json.Delim(']'):
			level--
		}
	}
}

// FuzzScan compares the scanner with encoding/json (what is valid) and gjson (what the model is).
func FuzzScan(f *testing.F) {
	seedBodies(f)
	f.Fuzz(func(t *testing.T, body []byte) {
		fields, err := Scan(body)
		var e *Error
		if err != nil && (!errors.As(err, &e) || e.Status != 400) {
			t.Fatalf("error %v is no *Error of status 400", err)
		}
		model := gjson.GetBytes(body, "model")
		valid := json.Valid(body)
		if err == nil && !valid {
			t.Fatalf("accepted what is not JSON: %q", body)
		}
		if err != nil {
			if !valid || bytes.TrimLeft(body, " \t\r\n")[0] != '{' || depth(body) > maxDepth || slowDuplicate(body) {
				return
			}
			s := gjson.GetBytes(body, "stream")
			badStream := s.Exists() && s.Type != gjson.True && s.Type != gjson.False && s.Type != gjson.Null
			badModel := model.Type != gjson.String || model.Str == "" || len(model.Str) > maxModel || !utf8.ValidString(model.Str)
			if !badStream && !badModel {
				t.Fatalf("refused a good body %q: %v", body, err)
			}
			return
		}
		if slowDuplicate(body) {
			t.Fatalf("accepted a duplicate key: %q", body)
		}
		if fields.Model != model.Str || !utf8.ValidString(fields.Model) {
			t.Fatalf("model %q, want %q", fields.Model, model.Str)
		}
		if fields.Stream != (gjson.GetBytes(body, "stream").Type == gjson.True) {
			t.Fatalf("stream %v in %q", fields.Stream, body)
		}
		spans := append(slices.Clone(fields.Prompt()), fields.ModelSpan, fields.StreamOptions, fields.IncludeUsage, fields.Priority, fields.CacheSalt)
		for _, s := range spans {
			if !s.Empty() && !json.Valid(s.Of(body)) {
				t.Fatalf("span %v of %q is no value", s, body)
			}
		}
		checkFields(t, body, &fields)
		if fields.PromptBytes < 0 || fields.PromptBytes+fields.MediaBytes > len(body) || fields.N < 0 || fields.MaxTokens < 0 {
			t.Fatalf("impossible counts: %+v", fields)
		}
	})
}

// FuzzSplice checks the properties of a rewrite on whatever scans.
func FuzzSplice(f *testing.F) {
	seedBodies(f)
	f.Fuzz(func(t *testing.T, body []byte) {
		if _, err := Scan(body); err != nil {
			return
		}
		p := len(body)
		checkRewrite(t, body, Rewrite{Model: "x<\"\\\n\u2028>", InjectUsage: true, Priority: &p, CacheSalt: "s&"})
		checkRewrite(t, body, Rewrite{InjectUsage: true})
		checkRewrite(t, body, Rewrite{})
	})
}

func FuzzQuote(f *testing.F) {
	for _, s := range []string{"", "a<b>&\u2028", "\x00\x1f\x7f\"\\", "\xff\xc3", "é😀"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		quoted := appendQuoted(nil, s)
		var got string
		if err := json.Unmarshal(quoted, &got); err != nil {
			t.Fatalf("%q became %s: %v", s, quoted, err)
		}
		var want string
		std, _ := json.Marshal(s)
		_ = json.Unmarshal(std, &want)
		if got != want {
			t.Fatalf("%q became %q, want %q", s, got, want)
		}
	})
}
