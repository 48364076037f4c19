package sim

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestBadRequests(t *testing.T) {
	const ok = `"messages":[{"role":"user","content":"x"}]`
	chat, text, embed := "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
	tests := []struct {
		path, body, param string
	}{
		{chat, `[]`, "body"},
		{chat, `null`, "body"},
		{chat, `{"messages":"x"}`, "body.messages"},
		{chat, `{"messages":["x"]}`, "body.messages.0"},
		{chat, `{"messages":[{"content":"x"}]}`, "body.messages.0.role"},
		{chat, `{"messages":[{"role":"user","content":3}]}`, "body.messages.0.content"},
		{chat, `{"messages":[{"role":"user","content":[3]}]}`, "body.messages.0.content.0"},
		{chat, `{` + ok + `,"model":5}`, "body.model"},
		{chat, `{` + ok + `,"stream":"perhaps"}`, "body.stream"},
		{chat, `{` + ok + `,"max_tokens":1.5}`, "body.max_tokens"},
		{chat, `{` + ok + `,"max_tokens":"many"}`, "body.max_tokens"},
		{chat, `{` + ok + `,"max_tokens":[]}`, "body.max_tokens"},
		{chat, `{` + ok + `,"max_tokens":0}`, "max_tokens"},
		{chat, `{` + ok + `,"max_completion_tokens":-1}`, "max_completion_tokens"},
		{chat, `{` + ok + `,"max_tokens":2047}`, "input_tokens"},
		{chat, `{` + ok + `,"min_tokens":9,"max_tokens":8}`, "min_tokens"},
		{chat, `{` + ok + `,"temperature":[]}`, "body.temperature"},
		{chat, `{` + ok + `,"top_p":0}`, "top_p"},
		{chat, `{` + ok + `,"presence_penalty":3}`, "presence_penalty"},
		{chat, `{` + ok + `,"frequency_penalty":-3}`, "frequency_penalty"},
		{chat, `{` + ok + `,"n":0}`, "n"},
		{chat, `{` + ok + `,"n":100000}`, "n"},
		{chat, `{` + ok + `,"stop":7}`, "body.stop"},
		{chat, `{` + ok + `,"stream_options":{"include_usage":true}}`, "stream_options"},
		{chat, `{` + ok + `,"stream":true,"stream_options":[]}`, "body.stream_options"},
		{text, `{}`, "body.prompt"},
		{text, `{"prompt":[]}`, "body.prompt"},
		{text, `{"prompt":""}`, "prompt"},
		{text, `{"prompt":[-1]}`, "body.prompt"},
		{text, `{"prompt":[1,"x"]}`, "body.prompt"},
		{text, `{"prompt":[1.5]}`, "body.prompt"},
		{text, `{"prompt":{}}`, "body.prompt"},
		{text, `{"prompt":["a","b"],"n":1000}`, "n"},
		{embed, `{}`, "body.input"},
		{embed, `{"input":"x","encoding_format":"hex"}`, "body.encoding_format"},
		{embed, `{"input":"x","dimensions":7}`, "dimensions"},
		{"/v1/responses", `{}`, "body.input"},
		{"/v1/messages", `{` + ok + `}`, "body.max_tokens"},
		{"/v1/rerank", `{"query":"x"}`, "body.documents"},
		{"/v1/score", `{"text_1":"x"}`, "body.text_2"},
		{"/v1/score", `{"text_1":["x","y"],"text_2":["x"]}`, "text_1"},
		{"/detokenize", `{"tokens":"x"}`, "body.tokens"},
		{"/tokenize", `{}`, "body.prompt"},
	}
	_, srv := newTestEngine(t, goldenConfig())
	for _, tt := range tests {
		status, _, body, err := send(t, "POST", srv.URL+tt.path, tt.body)
		var got errorBody
		if err != nil || json.Unmarshal([]byte(body), &got) != nil || status != 400 || got.Error.Code != 400 {
			t.Errorf("%s %s: %d %s %v", tt.path, tt.body, status, body, err)
			continue
		}
		if got.Error.Param == nil || *got.Error.Param != tt.param || got.Error.Message == "" {
			t.Errorf("%s %s: %s: want param %s", tt.path, tt.body, body, tt.param)
		}
	}
}

func TestErrorsOfOtherEndpoints(t *testing.T) {
	_, srv := newTestEngine(t, goldenConfig())
	tests := []struct {
		path, body string
		status     int
		want       string
	}{
		{
			"/v1/messages", `{"model":"nope","max_tokens":1,"messages":[]}`, 404,
			`{"type":"error","error":{"type":"NotFoundError","message":"The model ` + "`nope`" + ` does not exist. Valid aliases: tiny."}}`,
		},
		{
			"/v1/responses", `{"input":"x","previous_response_id":"resp_1"}`, 404,
			`{"error":{"message":"Response with id 'resp_1' not found.","type":"NotFoundError","param":"response_id","code":404}}`,
		},
	}
	for _, tt := range tests {
		if status, _, body, err := send(t, "POST", srv.URL+tt.path, tt.body); status != tt.status || body != tt.want || err != nil {
			t.Errorf("%s: %d %s %v: want %d %s", tt.path, status, body, err, tt.status, tt.want)
		}
	}
}

// Of a repeated key the last one counts, as in Python.
func TestLastKeyWins(t *testing.T) {
	_, srv := newTestEngine(t, goldenConfig())
	got := must(t, "POST", srv.URL+"/v1/chat/completions", `{"model":"nope","model":"alpha","messages":[],"max_tokens":1}`)
	if !strings.Contains(got, `"model":"alpha"`) {
		t.Errorf("got %s", got)
	}
}

func TestRequestIDs(t *testing.T) {
	_, srv := newTestEngine(t, fast())
	body := `{"messages":[],"max_tokens":1,"request_id":"mine"}`
	for _, tt := range []struct {
		header []string
		want   string
	}{
		{nil, `{"id":"chatcmpl-mine",`},
		{[]string{"X-Request-Id", "gw-1"}, `{"id":"chatcmpl-gw-1",`},
		{[]string{"X-Request-Id", `a"b`}, `{"id":"chatcmpl-a\"b",`},
	} {
		if got := must(t, "POST", srv.URL+"/v1/chat/completions", body, tt.header...); !strings.HasPrefix(got, tt.want) {
			t.Errorf("%v: got %.80s: want %s", tt.header, got, tt.want)
		}
	}
	got := must(t, "POST", srv.URL+"/v1/chat/completions", `{"messages":[],"max_tokens":1,"stream":true}`, "X-Request-Id", `a"b`)
	if !strings.HasPrefix(got, `data: {"id":"chatcmpl-a\"b",`) {
		t.Errorf("got %.80s", got)
	}
}

// Different content, also of images and tools, makes different prompts.
func TestPromptsDependOnAllContent(t *testing.T) {
	bodies := []string{
		`{"messages":[{"role":"user","content":"a"}]}`,
		`{"messages":[{"role":"system","content":"a"}]}`,
		`{"messages":[{"role":"critic","content":"a"}]}`,
		`{"messages":[{"role":"user","content":"a","name":"n"}]}`,
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:1"}}]}]}`,
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:2"}}]}]}`,
		`{"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function"}]}`,
		`{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1"}]}]}`,
		`{"messages":[{"role":"user","content":"a"}],"system":"be kind"}`,
	}
	seen := make(map[string]string)
	for _, body := range bodies {
		f, bad := parseFields([]byte(body))
		if bad != nil {
			t.Fatal(bad.message)
		}
		ids := chatPrompt(f, "system", true)
		if bad := f.err(); bad != nil {
			t.Fatalf("%s: %s", body, bad.message)
		}
		key := string(appendIDs(nil, ids))
		if other, ok := seen[key]; ok {
			t.Errorf("%s and %s are the same prompt", body, other)
		}
		seen[key] = body
	}
	parts, _ := parseFields([]byte(`{"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}]}`))
	if _, ok := seen[string(appendIDs(nil, chatPrompt(parts, "", true)))]; !ok {
		t.Error("a text in a part is another prompt than the text alone")
	}
}

// FuzzServe sends any body to any path: the answer is one of HTTP's, and no
// sequence stays behind.
func FuzzServe(f *testing.F) {
	cfg := fast()
	cfg.MaxModelLen, cfg.KVBlocks = 256, 16
	e, err := New(cfg)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(e.Close)
	paths := []string{
		"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/pooling",
		"/v1/rerank", "/v1/score", "/tokenize", "/detokenize", "/v1/messages/count_tokens",
	}
	for i, body := range []string{
		askChat, `{"prompt":[[1,2],"x"],"n":2,"stop":["a"]}`, `{"input":[{"role":"user","content":[{"type":"input_text","text":"x"}]}]}`,
		`{"messages":[{"role":"user","content":"x"}],"max_tokens":3,"system":[{"type":"text","text":"s"}]}`, `{"input":["a",[1]]}`, `{"input":"x"}`,
		`{"query":"a","documents":["b"],"top_n":1}`, `{"text_1":"a","text_2":["b"]}`, `{"prompt":"x","return_token_strs":true}`, `{"tokens":[1]}`,
	} {
		f.Add(uint8(i), []byte(body))
	}
	f.Fuzz(func(t *testing.T, path uint8, body []byte) {
		r := httptest.NewRequestWithContext(t.Context(), "POST", paths[int(path)%len(paths)], bytes.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		e.Handler().ServeHTTP(w, r)
		switch w.Code {
		case http.StatusOK, http.StatusBadRequest, http.StatusNotFound:
		default:
			t.Errorf("%s: %d %s", body, w.Code, w.Body)
		}
		if w.Header().Get("Content-Type") == "application/json" && !json.Valid(w.Body.Bytes()) {
			t.Errorf("%s: the answer is no JSON: %s", body, w.Body)
		}
		if n := e.core.Load().inflight.Load(); n != 0 {
			t.Errorf("%s: %d sequences in flight", body, n)
		}
	})
}
