package openai

import (
	"testing"

	"github.com/tidwall/gjson"
)

func TestParseUsage(t *testing.T) {
	for _, tt := range []struct {
		raw  string
		want Usage
		ok   bool
	}{
		{`{"prompt_tokens":11,"completion_tokens":3,"total_tokens":14}`, Usage{Prompt: 11, Completion: 3}, true},
		{` {"prompt_tokens":9,"total_tokens":9}`, Usage{Prompt: 9}, true},
		{`{"prompt_tokens":5,"completion_tokens":6,"prompt_tokens_details":null,"completion_tokens_details":null}`, Usage{Prompt: 5, Completion: 6}, true},
		{`{"prompt_tokens":5,"prompt_tokens_details":{},"completion_tokens_details":[]}`, Usage{Prompt: 5}, true},
		{`{"prompt_tokens":5,"prompt_tokens_details":{"cached_tokens":null,"x":{}}}`, Usage{Prompt: 5}, true},
		{`{"prompt_tokens_details":{"cached_tokens":4},"prompt_tokens":5}`, Usage{Prompt: 5, Cached: 4}, true},
		{`{"prompt_tokens":5,"prompt_tokens_details":{"cached_tokens":40}}`, Usage{Prompt: 5, Cached: 5}, true},
		{`{"completion_tokens":5,"completion_tokens_details":{"reasoning_tokens":40}}`, Usage{Completion: 5, Reasoning: 5}, true},
		{`{"input_tokens":10,"input_tokens_details":{"cached_tokens":2},"output_tokens":4,"output_tokens_details":{"reasoning_tokens":3}}`, Usage{10, 4, 2, 3}, true},
		{`{"input_tokens":16,"output_tokens":2,"cache_creation_input_tokens":5,"cache_read_input_tokens":96}`, Usage{Prompt: 117, Completion: 2, Cached: 96}, true},
		{`{"output_tokens":2}`, Usage{Completion: 2}, true},
		{`{"prompt_tokens":0,"completion_tokens":0}`, Usage{}, true},
		{`{"prompt_tokens":-1,"completion_tokens":3}`, Usage{Completion: 3}, true},
		{`{"prompt_tokens":1000000000,"completion_tokens":1000000001}`, Usage{Prompt: 1000000000}, true},
		{`{"prompt_tokens":99999999999999999999,"completion_tokens":1.5}`, Usage{}, false},
		{`{"prompt_tokens":"5","completion_tokens":null}`, Usage{}, false},
		{`{"type":"duration","seconds":3}`, Usage{}, false},
		{`{}`, Usage{}, false},
		{`null`, Usage{}, false},
		{``, Usage{}, false},
		{`[]`, Usage{}, false},
		{`5`, Usage{}, false},
	} {
		if got, ok := ParseUsage([]byte(tt.raw)); got != tt.want || ok != tt.ok {
			t.Errorf("ParseUsage(%s) = %+v %v, want %+v %v", tt.raw, got, ok, tt.want, tt.ok)
		}
	}
}

func TestT06_CachedAndReasoningAreParts(t *testing.T) {
	stream := testdata(t, "sse/usage_tail.sse")
	_, r := readAll(t, TapOptions{}, stream)
	u := r.Usage
	if u.Total() != 2142 || u.Prompt-u.Cached != 86 || u.Completion != 136 || u.Reasoning != 31 {
		t.Errorf("usage %+v, total %d", u, u.Total())
	}
}

func FuzzParseUsage(f *testing.F) {
	f.Add([]byte(`{"prompt_tokens":5,"completion_tokens":6,"prompt_tokens_details":{"cached_tokens":2}}`))
	f.Add([]byte(`{"input_tokens":1,"cache_read_input_tokens":35,"output_tokens":4}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		u, ok := ParseUsage(raw)
		if u.Cached < 0 || u.Reasoning < 0 || u.Cached > u.Prompt || u.Reasoning > u.Completion || u.Total() > 4*maxCount {
			t.Fatalf("%q: impossible usage %+v", raw, u)
		}
		if ok && gjson.ValidBytes(raw) && !gjson.GetBytes(raw, "@this").IsObject() {
			t.Fatalf("%q: usage of what is no object", raw)
		}
	})
}
