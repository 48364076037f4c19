//go:build engines

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"testing"
)

// logLine is a request in the gateway's access log, as far as the tests care.
type logLine struct {
	ID         string `json:"request_id"`
	Model      string `json:"model"`
	Replica    string `json:"replica"`
	Outcome    string `json:"outcome"`
	Prompt     *int   `json:"prompt_tokens"`
	Completion *int   `json:"completion_tokens"`
}

// logged finds a request in the access log, which is written after the answer.
func logged(id string) (line logLine, err error) {
	text, err := os.ReadFile(lab.accessLog)
	if err != nil {
		return line, err
	}
	for l := range bytes.Lines(text) {
		if !bytes.Contains(l, []byte(id)) {
			continue
		}
		if err := json.Unmarshal(l, &line); err != nil {
			return line, errStill("half written: %w", err)
		}
		if line.ID == id {
			return line, nil
		}
	}
	return line, errStill("request %q is not in the log", id)
}

// TestUsage: the gateway counts and logs the tokens that the engine says it
// used, whether or not the client asked for them: compared with the engine's
// own counters and, where the client sees it, with the usage object.
func TestUsage(t *testing.T) {
	vllm := func(url string) (u usage, err error) {
		p, err := metric(url, "vllm:prompt_tokens_total")
		if err != nil {
			return u, err
		}
		c, err := metric(url, "vllm:generation_tokens_total")
		return usage{Prompt: int(p), Completion: int(c)}, err
	}
	llama := func(url string) (u usage, err error) {
		p, err := metric(url, "llamacpp:prompt_tokens_total")
		if err != nil {
			return u, err
		}
		cached, err := metric(url, "llamacpp:prompt_tokens_cached_total")
		if err != nil {
			return u, err
		}
		c, err := metric(url, "llamacpp:tokens_predicted_total")
		return usage{Prompt: int(p + cached), Completion: int(c)}, err
	}
	prompt := []object{{"role": "user", "content": "Tell a short story about a river and a house."}}
	for _, e := range []struct {
		name, model, url string
		counters         func(url string) (usage, error)
	}{
		{"vLLM", recordedTiny, lab.vllmURL[0], vllm},
		{"llama.cpp", recordedSmol, lab.llamaURL, llama},
	} {
		for _, c := range []struct {
			name, path string
			body       object
			seen       bool // by the client, asked or not
		}{
			{"chat", "/v1/chat/completions", object{"messages": prompt, "max_tokens": 9}, true},
			{"chat stream", "/v1/chat/completions", object{"messages": prompt, "max_tokens": 10, "stream": true}, false},
			{"chat stream with usage", "/v1/chat/completions", object{
				"messages": prompt, "max_tokens": 11, "stream": true, "stream_options": object{"include_usage": true},
			}, true},
			{"completions stream", "/v1/completions", object{"prompt": "one two three", "max_tokens": 12, "stream": true}, e.url == lab.llamaURL},
			{"responses stream", "/v1/responses", object{"input": "one two three", "max_output_tokens": 13, "stream": true}, true},
			{"messages stream", "/v1/messages", object{"messages": prompt, "max_tokens": 14, "stream": true}, true},
		} {
			t.Run(e.name+"/"+c.name, func(t *testing.T) {
				gateway := func() (u usage, err error) {
					p, err := metric(lab.adminURL, "llmgw_tokens_total", `model="`+e.model+`"`, `direction="prompt"`)
					if err != nil {
						return u, err
					}
					c, err := metric(lab.adminURL, "llmgw_tokens_total", `model="`+e.model+`"`, `direction="completion"`)
					return usage{Prompt: int(p), Completion: int(c)}, err
				}
				since := func(read func() (usage, error)) func() (usage, error) {
					start, err := read()
					if err != nil {
						t.Fatal(err)
					}
					return func() (usage, error) {
						now, err := read()
						return usage{Prompt: now.Prompt - start.Prompt, Completion: now.Completion - start.Completion}, err
					}
				}
				engineSays := since(func() (usage, error) { return e.counters(e.url) })
				gatewaySays := since(gateway)
				c.body["model"], c.body["temperature"] = e.model, 0
				res := posted(t, lab.gatewayURL+c.path, c.body)
				var got usage
				eventually(t, patience, func() error {
					a, err := engineSays()
					if err != nil {
						return err
					}
					if got, err = gatewaySays(); err != nil || got != a || got.Prompt == 0 || got.Completion == 0 {
						return errStill("the engine counts %+v, the gateway %+v: %v", a, got, err)
					}
					return nil
				})
				eventually(t, patience, func() error {
					line, err := logged(res.header.Get("x-request-id"))
					if err == nil && (line.Prompt == nil || line.Completion == nil || *line.Prompt != got.Prompt ||
						*line.Completion != got.Completion || line.Outcome != "ok" || line.Model != e.model) {
						err = fmt.Errorf("%w: want %+v, logged is %+v", errHopeless, got, line)
					}
					return err
				})
				seen := totals(string(res.body))
				if (seen != nil) != c.seen {
					t.Fatalf("usage %+v in what the client got:\n%s", seen, res.body)
				}
				if c.seen && *seen != got {
					t.Errorf("the client was told %+v, counted is %+v", *seen, got)
				}
			})
		}
	}
}
