package integration

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// TestByHand is the route that `llm` stands for, and parts of it alone.
func TestByHand(t *testing.T) {
	for name, site := range map[string]string{
		"all":         "\troute {\n\t\tllm_api\n\t\tllm_keys\n\t\tllm_models\n\t\treverse_proxy {\n\t\t\tdynamic llm\n\t\t\ttransport llm\n\t\t}\n\t}",
		"proxy":       "\troute {\n\t\tllm_api\n\t\tllm_keys\n\t\tllm_proxy\n\t}",
		"proxy alone": "\tllm_proxy",
		"source":      "\treverse_proxy {\n\t\tdynamic llm\n\t\ttransport llm\n\t}",
		"http":        "\treverse_proxy {\n\t\tdynamic llm\n\t}",
		"header":      "\treverse_proxy {\n\t\tdynamic llm\n\t\ttransport llm\n\t\theader_up X-Extra 1\n\t}",
		"no llm_keys": "\tllm_api\n\treverse_proxy {\n\t\tdynamic llm\n\t\ttransport llm\n\t}",
	} {
		t.Run(name, func(t *testing.T) {
			dead := newEngine(t, answer)
			dead.Close()
			a := newEngine(t, answer)
			option := strings.Replace(guarded(dead, a), "api_key", "served_model real\n\t\t\t\tapi_key", 1)
			g := start(t, option, strings.Replace(site, "reverse_proxy {", "reverse_proxy {\n\t\t\tlb_retries 3", 1))
			for range 4 {
				res, text := g.post(t, "/v1/chat/completions", request, "Authorization", "Bearer "+secret)
				if res.StatusCode != http.StatusOK {
					t.Fatalf("%s %s", res.Status, text)
				}
			}
			for _, r := range a.got() {
				if r.Body != strings.Replace(request, `"m"`, `"real"`, 1) {
					t.Errorf("the engine got %s", r.Body)
				}
				if strings.Contains(fmt.Sprint(r.Header), secret) {
					t.Errorf("the engine got the client's key: %v", r.Header)
				}
				if got := r.Header.Get("Authorization"); got != "Bearer engine-secret" && name != "http" {
					t.Errorf("Authorization %q", got)
				}
			}
			eventually(t, "nothing is in flight at rest", func() bool { return g.replicas(t)[a.Address].Inflight == 0 })
		})
	}
}

func TestPolicyOverStaticUpstreams(t *testing.T) {
	busy, idle := newEngine(t, answer), newEngine(t, answer)
	busy.setPage(page(3, 4, 0.8))
	idle.setPage(page(0, 1, 0.1))
	g := start(t, "", fmt.Sprintf("\treverse_proxy %s %s {\n\t\tlb_policy llm\n\t}", busy.Address, idle.Address))
	g.post(t, "/v1/chat/completions", request) // tells the policy its upstreams
	g.known(t, busy, idle)
	if counts := spread(t, g, 20, busy, idle); counts[0] > 2 {
		t.Errorf("the busy upstream got %d of 20", counts[0])
	}
	for _, r := range idle.got() {
		if r.Body != request {
			t.Errorf("the engine got %q", r.Body)
		}
	}
	g.admin(t, "/llmgw/replicas/drain", fmt.Sprintf(`{"replica":%q}`, idle.Address), nil)
	if counts := spread(t, g, 5, busy, idle); counts[0] != 5 {
		t.Errorf("draining: %v", counts)
	}
}

func TestWrongPathsAndMethods(t *testing.T) {
	e := newEngine(t, answer)
	g := start(t, one(e), "\tllm {\n\t\tpath /v1/custom\n\t}")
	for _, c := range []struct {
		method, path string
		status       int
	}{
		{http.MethodGet, "/v1/chat/completions", http.StatusMethodNotAllowed},
		{http.MethodPut, "/v1/chat/completions", http.StatusMethodNotAllowed},
		{http.MethodPost, "/v1/models", http.StatusMethodNotAllowed},
		{http.MethodPost, "/v1/chat/completions/x", http.StatusNotFound},
		{http.MethodPost, "/v1/load_lora_adapter", http.StatusNotFound},
		{http.MethodPost, "/reset_prefix_cache", http.StatusNotFound},
		{http.MethodGet, "/metrics", http.StatusNotFound},
		{http.MethodGet, "/", http.StatusNotFound},
		{http.MethodGet, "/v1/models/nope", http.StatusNotFound},
		{http.MethodGet, "/v1/realtime?model=m", http.StatusBadRequest},
	} {
		res, err := http.DefaultClient.Do(g.request(t, t.Context(), c.method, c.path, ""))
		if err != nil {
			t.Fatal(err)
		}
		isError(t, res, readAll(t, res.Body), c.status)
		res.Body.Close()
		if c.status == http.StatusMethodNotAllowed && res.Header.Get("Allow") == "" {
			t.Errorf("%s %s: no Allow", c.method, c.path)
		}
	}
	for _, path := range []string{
		"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages",
		"/v1/messages/count_tokens", "/v1/rerank", "/rerank", "/v1/score", "/tokenize", "/pooling", "/v1/audio/speech", "/v1/custom",
	} {
		if res, text := g.post(t, path, `{"model":"m"}`); res.StatusCode != http.StatusOK {
			t.Errorf("%s: %s %s", path, res.Status, text)
		}
		if got := e.got(); got[len(got)-1].Path != path {
			t.Errorf("%s arrived at %s", path, got[len(got)-1].Path)
		}
	}
	// Clients of the Messages API read another shape of errors.
	_, text := g.post(t, "/v1/messages", `{"model":"nope"}`)
	if !strings.HasPrefix(text, `{"type":"error","error":{`) {
		t.Errorf("got %s", text)
	}
}

func TestTraceparentReachesTheEngine(t *testing.T) {
	t.Setenv("OTEL_SDK_DISABLED", "false")
	t.Setenv("OTEL_TRACES_EXPORTER", "none")
	e := newEngine(t, answer)
	const trace = "0af7651916cd43dd8448eb211c80319c"
	for name, site := range map[string]string{"plain": "\tllm", "tracing": "\ttracing\n\tllm"} {
		t.Run(name, func(t *testing.T) {
			g := start(t, one(e), site)
			g.post(t, "/v1/chat/completions", request, "Traceparent", "00-"+trace+"-b7ad6b7169203331-01")
			got := e.got()
			parent := got[len(got)-1].Header.Get("Traceparent")
			if !strings.HasPrefix(parent, "00-"+trace+"-") {
				t.Errorf("the engine got traceparent %q", parent)
			}
			if own := !strings.Contains(parent, "b7ad6b7169203331"); own != (name == "tracing") {
				t.Errorf("a span of the gateway's own: %v", own)
			}
		})
	}
}

func TestEngineErrorsAreNormalised(t *testing.T) {
	var status int
	var body string
	e := newEngine(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	})
	g := start(t, one(e), "\tllm")
	for _, c := range []struct {
		status, want int
		body, code   string
	}{
		{400, 400, `{"error":{"message":"This model's maximum context length is 2048 tokens.","type":"BadRequestError","param":"input_tokens","code":400}}`, "context_length_exceeded"},
		{404, 404, `{"error":{"message":"The model ` + "`x`" + ` does not exist.","type":"NotFoundError","param":"model","code":404}}`, "model_not_found"},
		{422, 422, `{"detail":[{"loc":["body","temperature"],"msg":"bad","type":"x"}]}`, ""},
		{500, 500, "Internal Server Error", ""},
		{501, 501, `{"error":{"message":"not supported","type":"not_supported_error","code":501}}`, ""},
		{302, 502, "", "engine_redirect"},
		{403, 502, `{"error":"Forbidden"}`, "engine_denied"},
	} {
		status, body = c.status, c.body
		res, text := g.post(t, "/v1/chat/completions", request)
		if code := isError(t, res, text, c.want); code != c.code {
			t.Errorf("%d: code %q, want %q", c.status, code, c.code)
		}
		if res.Header.Get("Retry-After") != "7" || res.Header.Get("X-Llmgw-Replica") == "" {
			t.Errorf("%d: headers %v", c.status, res.Header)
		}
	}
}
