package openai

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestNormalizeCapturedErrors(t *testing.T) {
	for _, tt := range []struct {
		name    string
		status  int
		param   string
		code    string
		message string // must be contained
	}{
		{"vllm_auth_401", 401, "", "", "Unauthorized"},
		{"vllm_bad_json", 400, "body.28", "", "1 validation error:\n  {'type': 'json_invalid'"},
		{"vllm_bad_param", 400, "temperature", "", "temperature must be non-negative, got -3.0."},
		{"vllm_bad_type", 400, "body.temperature", "", "Input should be a valid number"},
		{"vllm_content_type", 400, "", "", "Only 'application/json' is allowed"},
		{"vllm_max_tokens", 400, "max_tokens", "", "cannot be greater than max_model_len=2048"},
		{"vllm_method", 405, "", "", "Method Not Allowed"},
		{"vllm_no_messages", 400, "body.messages", "", "Field required"},
		{"vllm_not_found", 404, "", "", "Not Found"},
		{"vllm_queue_limit_503", 503, "", "", "The engine is currently busy"},
		{"vllm_too_long", 400, "input_tokens", CodeContextLength, "maximum context length is 2048 tokens"},
		{"vllm_unknown_model", 404, "model", CodeModelNotFound, "The model `nope` does not exist."},
		{"vllm_embed_unknown_model", 404, "", CodeModelNotFound, "The model `nope` does not exist."},
		{"llamacpp_bad_json", 400, "", "", "parse error at line 1, column 15"},
		{"llamacpp_bad_param", 400, "", "", "type must be number, but is string"},
		{"llamacpp_no_messages", 400, "", "", "'messages' is required"},
		{"llamacpp_too_long", 400, "", CodeContextLength, "exceeds the available context size (2048 tokens)"},
		{"llamacpp_not_found", 404, "", "", "File Not Found"},
		{"llamacpp_embeddings_off", 501, "", "", "This server does not support embeddings."},
	} {
		checkNormalized(t, tt.name, tt.status, string(testdata(t, "errors/"+tt.name+".json")), tt.status, tt.param, tt.code, tt.message)
	}
}

func TestNormalizeOtherBodies(t *testing.T) {
	for _, tt := range []struct {
		name         string
		status       int
		body         string
		want         int
		param, code  string
		message      string
		exactMessage bool
	}{
		{"older vLLM", 400, `{"object":"error","message":"This model's maximum context length is 10 tokens.","type":"BadRequestError","param":null,"code":400}`, 400, "", CodeContextLength, "maximum context length", false},
		{"SGLang", 400, `{"object":"error","message":"The input (99 tokens) is longer than the model's context length (10 tokens).","type":"BadRequestError","code":400}`, 400, "", CodeContextLength, "longer than", false},
		{"FastAPI list", 422, `{"detail":[{"loc":["body","model"],"msg":"field required","type":"missing","input":"secret"},{"loc":["query"],"msg":"bad"}]}`, 422, "model", "", "model: field required; query: bad", true},
		{"FastAPI odd list", 422, `{"detail":[1,{},"x"]}`, 422, "", "", "; ; ", false},
		{"own code kept", 429, `{"error":{"message":"m","code":"insufficient_quota","param":"p"}}`, 429, "p", "insufficient_quota", "m", true},
		{"odd types", 400, `{"error":{"message":5,"code":{},"param":[1]}}`, 400, "", "", "status 400", false},
		{"plain text", 500, "Internal Server Error\n", 500, "", "", "Internal Server Error", true},
		{"string", 500, `"some \"text\""`, 500, "", "", `some "text"`, true},
		{"HTML", 502, "<!DOCTYPE html><html><head><TITLE>502 Bad &amp; Gone</TITLE></head><body>…</body></html>", 502, "", "", "502 Bad & Gone", true},
		{"HTML without title", 504, "<html><title>x", 504, "", "", "the engine answered with status 504 Gateway Timeout and no message", true},
		{"empty", 503, " ", 503, "", "", "the engine answered with status 503 Service Unavailable and no message", true},
		{"unnamed status", 499, "", 499, "", "", "the engine answered with status 499 and no message", false},
		{"no error status", 200, `{"error":"x"}`, 502, "", "", "x", true},
		{"controls", 500, "{\"message\":\"a\\u0000b\\u001b[31m\\nc\"}", 500, "", "", "a b [31m\nc", true},
		{"bad UTF-8", 500, "a\xff\xfeb", 500, "", "", "a\uFFFDb", true},
		{"cut JSON", 500, `{"error":{"message":"half`, 500, "", "", "half", false},
		{"a 404 of something else", 404, `{"error":{"message":"The LoRA adapter 'x' cannot be found."}}`, 404, "", "", "adapter", false},
		{"context in a server error", 500, "maximum context length", 500, "", "", "maximum", false},
	} {
		e := checkNormalized(t, tt.name, tt.status, tt.body, tt.want, tt.param, tt.code, tt.message)
		if tt.exactMessage && e.Message != tt.message {
			t.Errorf("%s: message %q, want %q", tt.name, e.Message, tt.message)
		}
	}
}

func checkNormalized(t *testing.T, name string, status int, body string, want int, param, code, message string) *Error {
	t.Helper()
	e := Normalize(status, []byte(body))
	if e.Status != want || e.Type != TypeOf(want) || e.Param != param || e.Code != code {
		t.Errorf("%s: %d %s, param %q, code %q: %s", name, e.Status, e.Type, e.Param, e.Code, e.Message)
	}
	if !strings.Contains(e.Message, message) {
		t.Errorf("%s: message %q, want %q in it", name, e.Message, message)
	}
	return e
}

func TestNormalizeBounds(t *testing.T) {
	for _, body := range []string{
		`{"error":{"message":"` + strings.Repeat("é", 5000) + `","param":"` + strings.Repeat("p", 1000) + `","code":"` + strings.Repeat("c", 1000) + `"}}`,
		"x" + strings.Repeat("é", 1<<20),
		strings.Repeat("<title>", 1<<18),
		`{"detail":[` + strings.Repeat(`{"loc":["body","x"],"msg":"m"},`, 1<<14) + `{}]}`,
	} {
		e := Normalize(400, []byte(body))
		if len(e.Message) > maxErrorMessage || len(e.Param) > maxErrorWord || len(e.Code) > maxErrorWord || !utf8.ValidString(e.Message) {
			t.Errorf("%.40s: message of %d bytes, param %d, code %d", body, len(e.Message), len(e.Param), len(e.Code))
		}
	}
}

func FuzzNormalize(f *testing.F) {
	for _, s := range []string{`{"error":{"message":"m","code":400}}`, `{"detail":[{"loc":["body"],"msg":"m"}]}`, `{"error":"x"}`, "<title>İ</title>", `"s"`, ""} {
		f.Add(400, []byte(s))
	}
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		e := Normalize(status, body)
		if e.Message == "" || !utf8.ValidString(e.Message+e.Param+e.Code) || len(e.Message) > maxErrorMessage || e.Status < 400 || e.Status > 599 {
			t.Fatalf("%+v", e)
		}
		if s := e.AppendJSON(nil, true); !json.Valid(s) {
			t.Fatalf("not JSON: %s", s)
		}
	})
}
