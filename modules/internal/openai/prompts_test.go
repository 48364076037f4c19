package openai

import (
	"strings"
	"testing"
)

func TestSequences(t *testing.T) {
	for body, want := range map[string]int64{
		`{"model":"m"}`:                                1,
		`{"model":"m","prompt":"a","n":3}`:             3,
		`{"model":"m","prompt":["a"]}`:                 1,
		`{"model":"m","prompt":[ "a" , "b,c" ],"n":2}`: 4,
		`{"model":"m","prompt":[1,2,3]}`:               1,
		`{"model":"m","prompt":[[1,2],[3],[]]}`:        3,
		`{"model":"m","prompt":[],"n":0}`:              1,
		`{"model":"m","messages":[{"role":"user","content":["a","b"]},{"role":"user"}]}`:                                                   1,
		`{"model":"m","text_1":"a","text_2":["a","b","c"]}`:                                                                                3,
		`{"model":"m","query":"a","documents":[{"content":[]},{}]}`:                                                                        2,
		`{"model":"m","data_1":"a","data_2":["a","b","c"]}`:                                                                                3,
		`{"model":"m","queries":["a"],"items":[{},{}]}`:                                                                                    2,
		`{"model":"m","documents":[{},{},{}],"messages":null}`:                                                                             3,
		`{"model":"m","prompt":"","prompt":"","prompt":"","prompt":"","prompt":"","prompt":"","prompt":"","prompt":"","prompt":["a","b"]}`: 2,
		`{"model":"m","input":[{"role":"user"},{"role":"user"}]}`:                                                                          1,
		`{"model":"m","input":["a"` + strings.Repeat(`,"a"`, 2*MaxSequences) + `]}`:                                                        MaxSequences,
		`{"model":"m","prompt":["a","b"],"n":1000000000000}`:                                                                               MaxSequences,
	} {
		f, err := Scan([]byte(body))
		if err != nil {
			t.Fatal(err)
		}
		if got := f.Sequences(f.Prompts(false)); got != want {
			t.Errorf("%.80s: %d, want %d", body, got, want)
		}
	}
	f, err := Scan([]byte(`{"model":"m","documents":[{},{}],"messages":[{"role":"user"}]}`))
	if err != nil || f.Sequences(f.Prompts(true)) != 1 {
		t.Errorf("documents for a chat template: %d: %v", f.Sequences(f.Prompts(true)), err)
	}
}
