package openai

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"math"
	"math/big"
	"regexp"
	"strings"
	"testing"
)

// promptKeys are the members that end up in a prompt.
var promptKeys = map[string]bool{
	"messages": true, "prompt": true, "suffix": true, "input": true, "system": true, "instructions": true, "tools": true,
	"query": true, "documents": true, "text_1": true, "text_2": true, "texts": true, "queries": true,
	"items": true, "data_1": true, "data_2": true,
}

// slowFields are the members of a body that routing reads, by their decoded
// keys, and the values of the prompt in the body's order.
func slowFields(t *testing.T, body []byte) (values map[string]string, prompt []string) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(body))
	if _, err := d.Token(); err != nil {
		t.Fatal(err)
	}
	values = map[string]string{}
	for d.More() {
		key, err := d.Token()
		var value json.RawMessage
		if err != nil || d.Decode(&value) != nil {
			t.Fatalf("encoding/json fails at %q: %v", body, err)
		}
		name, text := key.(string), strings.TrimSpace(string(value))
		values[name] = text
		if promptKeys[name] {
			prompt = append(prompt, text)
		}
		if name == "stream_options" && text[0] == '{' {
			var options map[string]json.RawMessage
			_ = json.Unmarshal(value, &options) // it is valid
			values["include_usage"] = strings.TrimSpace(string(options["include_usage"]))
		}
	}
	return values, prompt
}

// checkFields compares what was scanned with what encoding/json reads.
func checkFields(t *testing.T, body []byte, f *Fields) {
	t.Helper()
	values, prompt := slowFields(t, body)
	for name, span := range map[string]Span{
		"model": f.ModelSpan, "stream_options": f.StreamOptions, "include_usage": f.IncludeUsage,
		"priority": f.Priority, "cache_salt": f.CacheSalt,
	} {
		if got := string(span.Of(body)); got != values[name] {
			t.Fatalf("%s is %q, want %q in %q", name, got, values[name], body)
		}
	}
	if v := values["include_usage"]; f.WantsUsage != (v != "" && v != "false" && v != "null") {
		t.Fatalf("wants usage: %v, with %q", f.WantsUsage, v)
	}
	size, long := 0, false
	for i, v := range prompt {
		size += len(v)
		long = long || len(v) >= minMedia
		if i < len(f.Prompt()) && string(f.Prompt()[i].Of(body)) != v {
			t.Fatalf("part %d of the prompt is %q, want %q", i, f.Prompt()[i].Of(body), v)
		}
	}
	if want := min(len(prompt), len(f.prompt)); len(f.Prompt()) != want {
		t.Fatalf("%d parts of the prompt, want %d", len(f.Prompt()), want)
	}
	if f.PromptBytes+f.MediaBytes != size || !long && f.MediaBytes != 0 {
		t.Fatalf("%d bytes of prompt and %d of media, want %d together", f.PromptBytes, f.MediaBytes, size)
	}
	if want := slowUser(values["user"]); f.User != want {
		t.Fatalf("user %q, want %q in %q", f.User, want, body)
	}
	checkCount(t, f.N, f.HasN, maxNCap, values["n"])
	checkCount(t, f.MaxTokens, f.HasMaxTokens, maxTokensCap, values["max_completion_tokens"], values["max_output_tokens"], values["max_tokens"])
}

func slowUser(value string) string {
	if !strings.HasPrefix(value, `"`) {
		return ""
	}
	user := value[1 : len(value)-1]
	if strings.Contains(user, `\`) {
		_ = json.Unmarshal([]byte(value), &user) // it is valid
	}
	if len(user) > maxUser {
		sum := sha256.Sum256([]byte(user))
		return "sha256:" + hex.EncodeToString(sum[:])
	}
	return strings.ToValidUTF8(user, "\uFFFD")
}

// A number whose exponent an exact reading can bear.
var decimal = regexp.MustCompile(`^"?([0-9]+(\.[0-9]+)?([eE][-+]?[0-9]{1,3})?)"?$`)

// checkCount holds a count against an exact reading of the first of the values
// that is one. What is no plain number is left out.
func checkCount(t *testing.T, got int64, has bool, limit int64, values ...string) {
	t.Helper()
	for _, v := range values {
		if v == "" || v == "null" || v[0] == '-' || v[0] == '{' || v[0] == '[' || v == "true" || v == "false" {
			continue
		}
		m := decimal.FindStringSubmatch(v)
		if m == nil || len(m[1]) > 32 {
			return
		}
		exact, ok := new(big.Rat).SetString(m[1])
		if !ok {
			t.Fatalf("%q is no number", m[1])
		}
		near, _ := exact.Float64()
		if math.IsInf(near, 0) || !exact.IsInt() && near == math.Trunc(near) {
			return // rounding decides
		}
		if !exact.IsInt() {
			continue
		}
		want := limit
		if exact.Cmp(new(big.Rat).SetInt64(limit)) < 0 {
			want = exact.Num().Int64()
		}
		if !has || got != want {
			t.Fatalf("count %d (%v), want %d of %q", got, has, want, values)
		}
		return
	}
	if has || got != 0 {
		t.Fatalf("count %d (%v) of %q", got, has, values)
	}
}
