//go:build engines

package e2e

import (
	"strings"
	"testing"
)

// TestStreamBytes: a client gets the very bytes that the engine sent, on all
// APIs that stream. One that did not ask for usage gets them less exactly the
// usage chunk, which the gateway asked for. (The engines move a member from
// their last chunk to the usage chunk if there is one: vLLM its
// system_fingerprint, llama.cpp its timings.) In completions llama.cpp has no
// such chunk: it always puts the usage into the last one, which is passed on.
func TestStreamBytes(t *testing.T) {
	messages := `"messages":[{"role":"user","content":"Tell a story about a river, ünïcode {\"too\"}."}]`
	const asked = `,"stream_options":{"include_usage":true}`
	for _, c := range []struct {
		name, path, body string
		withheld         bool
	}{
		{"chat with usage", "/v1/chat/completions", messages + `,"max_tokens":24` + asked, false},
		{"chat without usage", "/v1/chat/completions", messages + `,"max_tokens":24`, true},
		{"chat with usage declined", "/v1/chat/completions", messages + `,"max_tokens":24,"stream_options":{"include_usage":false}`, true},
		{"completions with usage", "/v1/completions", `"prompt":"The sky is","max_tokens":24` + asked, false},
		{"completions without usage", "/v1/completions", `"prompt":"The sky is","max_tokens":24`, true},
		{"responses", "/v1/responses", `"input":"The sky is","max_output_tokens":24`, false},
		{"messages", "/v1/messages", messages + `,"max_tokens":24`, false},
	} {
		for model, engineModel := range map[string]string{recordedTiny: "tiny", recordedSmol: "smollm2-135m"} {
			t.Run(c.name+"/"+engineModel, func(t *testing.T) {
				body := `{"model":"` + model + `","temperature":0,"stream":true,` + c.body + `}`
				res := posted(t, lab.gatewayURL+c.path, body)
				got := string(res.body)
				request, answer := lab.recorders[model].last()
				list := events(answer)
				if len(list) < 4 {
					t.Fatalf("only %d events: %q", len(list), answer)
				}
				want := answer
				switch {
				case c.withheld && c.path == "/v1/completions" && engineModel == "smollm2-135m":
					if last := list[len(list)-2]; usageOf(last) == nil || strings.Contains(last, `"choices":[]`) {
						t.Errorf("the chunk before [DONE] is no choice with usage: %s", last)
					}
				case c.withheld:
					withheld := 0
					want = ""
					for _, e := range list {
						if usageOf(e) != nil && strings.Contains(e, `"choices":[]`) {
							withheld++
							continue
						}
						want += e
					}
					if withheld != 1 || !strings.Contains(request, `"include_usage":true`) {
						t.Errorf("the engine sent %d usage chunks, asked by %s", withheld, request)
					}
				default:
					if want := strings.Replace(body, model, engineModel, 1); request != want {
						t.Errorf("the engine was asked\n%s\nwant\n%s", request, want)
					}
				}
				if got != want {
					t.Errorf("the client got\n%s\nbut the engine sent\n%s", got, want)
				}
				if h := res.header.Get("Content-Type"); !strings.HasPrefix(h, "text/event-stream") {
					t.Errorf("Content-Type %q", h)
				}
			})
		}
	}
}

// TestStreamEnds: what marks the end of a stream arrives, on each API.
func TestStreamEnds(t *testing.T) {
	for path, c := range map[string]struct {
		body object
		last string
	}{
		"/v1/chat/completions": {object{"messages": []object{{"role": "user", "content": "hello"}}, "max_tokens": 4}, "data: [DONE]\n\n"},
		"/v1/completions":      {object{"prompt": "hello", "max_tokens": 4}, "data: [DONE]\n\n"},
		"/v1/responses":        {object{"input": "hello", "max_output_tokens": 4}, "event: response.completed\n"},
		"/v1/messages":         {object{"messages": []object{{"role": "user", "content": "hello"}}, "max_tokens": 4}, "event: message_stop\n"},
	} {
		t.Run(path, func(t *testing.T) {
			c.body["model"], c.body["stream"] = "tiny-llama", true
			list := events(string(posted(t, lab.gatewayURL+path, c.body).body))
			if last := list[len(list)-1]; !strings.HasPrefix(last, c.last) {
				t.Errorf("the last event is %q, want %q", last, c.last)
			}
		})
	}
}
