//go:build engines

package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestErrors: every failure has OpenAI's shape, status and code, whoever found
// it and however the engine puts it.
func TestErrors(t *testing.T) {
	long := strings.Repeat("word ", 4000) // both engines take 2048 tokens
	for _, c := range []struct {
		name, path string
		body       any
		status     int
		kind, code string
	}{
		{"vLLM/bad temperature", "/v1/chat/completions", chat("tiny", "x", 2, object{"temperature": -3}), 400, "invalid_request_error", ""},
		{"vLLM/temperature of another type", "/v1/chat/completions", chat("tiny", "x", 2, object{"temperature": "hot"}), 400, "invalid_request_error", ""},
		{"vLLM/too long", "/v1/chat/completions", chat("tiny", long, 2, nil), 400, "invalid_request_error", "context_length_exceeded"},
		{"vLLM/too long, streamed", "/v1/chat/completions", chat("tiny", long, 2, object{"stream": true}), 400, "invalid_request_error", "context_length_exceeded"},
		{"vLLM/no messages", "/v1/chat/completions", object{"model": "tiny"}, 400, "invalid_request_error", ""},
		{"llama.cpp/temperature of another type", "/v1/chat/completions", chat("smol", "x", 2, object{"temperature": "hot"}), 400, "invalid_request_error", ""},
		{"llama.cpp/too long", "/v1/chat/completions", chat("smol", long, 2, nil), 400, "invalid_request_error", "context_length_exceeded"},
		{"llama.cpp/too long, streamed", "/v1/chat/completions", chat("smol", long, 2, object{"stream": true}), 400, "invalid_request_error", "context_length_exceeded"},
		{"llama.cpp/no embeddings", "/v1/embeddings", object{"model": "smol", "input": "hello"}, 501, "server_error", ""},
		{"gateway/unknown model", "/v1/chat/completions", chat("nope", "x", 2, nil), 404, "invalid_request_error", "model_not_found"},
		{"gateway/broken JSON", "/v1/chat/completions", `{"model":"tiny",`, 400, "invalid_request_error", ""},
		{"gateway/unknown path", "/v1/nope", object{"model": "tiny"}, 404, "invalid_request_error", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			res := post(t, lab.gatewayURL+c.path, c.body)
			if res.status != c.status {
				t.Errorf("status %d, want %d", res.status, c.status)
			}
			checkError(t, res, c.kind, c.code)
		})
	}
}

// TestErrorKey: no key and a wrong one are refused in the same shape.
func TestErrorKey(t *testing.T) {
	for name, headers := range map[string][]string{
		"none": nil, "wrong": {"Authorization", "Bearer sk-llmgw-other"},
	} {
		t.Run(name, func(t *testing.T) {
			res := post(t, lab.keyedURL+"/v1/chat/completions", chat("tiny", "x", 2, nil), headers...)
			if res.status != http.StatusUnauthorized {
				t.Errorf("status %d, want 401", res.status)
			}
			checkError(t, res, "authentication_error", "invalid_api_key")
		})
	}
}

// checkError checks the shape {"error": {message, type, param, code}}. code ""
// stands for any: engines have their own.
func checkError(t *testing.T, res response, kind, code string) {
	t.Helper()
	var v struct {
		Error map[string]any `json:"error"`
	}
	dec := json.NewDecoder(strings.NewReader(string(res.body)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&v); err != nil || dec.Decode(new(any)) != io.EOF {
		t.Fatalf("not an error in OpenAI's shape: %v: %s", err, res.body)
	}
	if h := res.header.Get("Content-Type"); h != "application/json" {
		t.Errorf("Content-Type %q", h)
	}
	if m, ok := v.Error["message"].(string); !ok || m == "" {
		t.Errorf("no message: %s", res.body)
	}
	if v.Error["type"] != kind {
		t.Errorf("type %v, want %s: %s", v.Error["type"], kind, res.body)
	}
	for _, key := range []string{"param", "code"} {
		value, there := v.Error[key]
		if _, text := value.(string); !there || value != nil && !text {
			t.Errorf("%s is neither a text nor null: %s", key, res.body)
		}
	}
	if code != "" && v.Error["code"] != code {
		t.Errorf("code %v, want %s: %s", v.Error["code"], code, res.body)
	}
	if len(v.Error) != 4 {
		t.Errorf("other members than message, type, param and code: %s", res.body)
	}
}
