package openai

import (
	"errors"
	"io"
	"strings"
	"testing"
)

func readUnary(t *testing.T, pieces ...[]byte) (string, Result) {
	t.Helper()
	u := NewUnary(&chunks{pieces: pieces})
	out, err := io.ReadAll(u)
	if err != nil {
		t.Fatal(err)
	}
	if err := u.Close(); err != nil {
		t.Fatal(err)
	}
	return string(out), u.Result()
}

func TestCapturedAnswers(t *testing.T) {
	for name, want := range map[string]Result{
		"vllm_chat":            {Usage: Usage{Prompt: 29, Completion: 8}, Finish: "length"},
		"vllm_completions":     {Usage: Usage{Prompt: 4, Completion: 5}, Finish: "length"},
		"vllm_responses":       {Usage: Usage{Prompt: 10, Completion: 4}},
		"vllm_messages_cached": {Usage: Usage{Prompt: 112, Completion: 2, Cached: 96}, Finish: "max_tokens"},
		"vllm_rerank":          {Usage: Usage{Prompt: 9}},
		"vllm_score":           {Usage: Usage{Prompt: 9}},
		"llamacpp_chat":        {Usage: Usage{Prompt: 36, Completion: 12}, Finish: "stop"},
		"llamacpp_messages":    {Usage: Usage{Prompt: 36, Completion: 4, Cached: 35}, Finish: "end_turn"},
		"llamacpp_responses":   {Usage: Usage{Prompt: 32, Completion: 6, Cached: 26}},
	} {
		body := testdata(t, "answers/"+name+".json")
		want.HaveUsage, want.Done, want.Complete, want.Bytes = true, true, true, int64(len(body))
		for _, n := range []int{1, 100, len(body)} {
			if out, r := readUnary(t, every(body, n)...); out != string(body) || r != want {
				t.Errorf("%s: %+v, want %+v", name, r, want)
			}
		}
	}
}

func TestUnaryLargeAnswers(t *testing.T) {
	usage := `"usage":{"prompt_tokens":7,"completion_tokens":2}`
	decoy := `"text":"\"usage\":{\"prompt_tokens\":1}"`
	for _, size := range []int{1000, maxAnswer - 200, maxAnswer, maxAnswer + 1, 300 << 10, 3 << 20} {
		data := `"data":"` + strings.Repeat("x", size) + `"`
		for _, body := range []string{
			`{` + data + `,` + decoy + `,` + usage + `}`,
			`{` + decoy + `,` + usage + `,` + data + `}`,
			`{` + data + `,"choices":[{"index":0,"finish_reason":"stop"}],` + usage + `,` + decoy + `}`,
		} {
			for _, n := range []int{999, 32 << 10, len(body)} {
				u := NewUnary(&chunks{pieces: every([]byte(body), n)})
				out, err := io.ReadAll(u)
				r := u.Result()
				if err != nil || string(out) != body || !r.HaveUsage || r.Usage != (Usage{Prompt: 7, Completion: 2}) || !r.Complete {
					t.Errorf("%d bytes in pieces of %d: %v, %+v", len(body), n, err, r)
				}
				if strings.Contains(body, "finish_reason") && r.Finish != "stop" {
					t.Errorf("%d bytes in pieces of %d: finish %q", len(body), n, r.Finish)
				}
			}
		}
	}
}

func TestUnaryFailures(t *testing.T) {
	if _, r := readUnary(t, []byte(`{"choices":[{"finish_reason":"abort"}],"usage":{"prompt_tokens":3}}`)); !r.Aborted || r.Complete || r.Usage.Prompt != 3 {
		t.Errorf("aborted: %+v", r)
	}
	if _, r := readUnary(t, []byte(`{"error":{"message":"m"}}`)); !r.ErrorFrame || r.Complete {
		t.Errorf("error under 200: %+v", r)
	}
	if _, r := readUnary(t, []byte(`not JSON`)); r.HaveUsage || !r.Complete {
		t.Errorf("other content: %+v", r)
	}
	reset := errors.New("reset")
	u := NewUnary(&chunks{pieces: [][]byte{[]byte(`{"usage":{"prompt_tokens":3},"choi`)}, err: reset})
	if out, err := io.ReadAll(u); !errors.Is(err, reset) || len(out) != 34 {
		t.Errorf("%d bytes, %v", len(out), err)
	}
	if r := u.Result(); r.Complete || r.Done || r.Usage.Prompt != 3 {
		t.Errorf("broken: %+v", r)
	}
	src := &chunks{pieces: [][]byte{[]byte(`{}`)}}
	u = NewUnary(src)
	for range 2 {
		_ = u.Close()
	}
	if _, err := u.Read(make([]byte, 4)); err != nil || src.closed != 2 || u.Result().Complete {
		t.Errorf("after close: %v, closed %d times, %+v", err, src.closed, u.Result())
	}
}
