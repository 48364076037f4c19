package integration

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// received is a request as an engine got it.
type received struct {
	Method, Path, Query, Host string
	Header                    http.Header
	Body                      string
}

// engine is an engine that a test scripts.
type engine struct {
	*httptest.Server
	Address string

	mu       sync.Mutex
	requests []received
	page     string // /metrics; "" answers 404
	models   []string
	instead  http.HandlerFunc // answers everything, if set
}

// newEngine starts an engine that answers completions with serve. It lists the
// model "m" and has no metrics page.
func newEngine(t *testing.T, serve http.HandlerFunc) *engine {
	t.Helper()
	return newEngineAt(t, "127.0.0.1:0", serve)
}

// newEngineAt does so at an address.
func newEngineAt(t *testing.T, address string, serve http.HandlerFunc, options ...func(*http.Server)) *engine {
	t.Helper()
	ln, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	e := &engine{models: []string{"m"}}
	e.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.mu.Lock()
		page, models, instead := e.page, e.models, e.instead
		e.mu.Unlock()
		if instead != nil {
			instead(w, r)
			return
		}
		body, _ := io.ReadAll(r.Body)
		e.mu.Lock()
		e.requests = append(e.requests, received{r.Method, r.URL.Path, r.URL.RawQuery, r.Host, r.Header.Clone(), string(body)})
		e.mu.Unlock()
		switch r.URL.Path {
		case "/health":
		case "/metrics":
			if page == "" {
				http.NotFound(w, r)
				return
			}
			io.WriteString(w, page)
		case "/v1/models":
			var data []map[string]string
			for _, m := range models {
				data = append(data, map[string]string{"id": m})
			}
			json.NewEncoder(w).Encode(map[string]any{"object": "list", "data": data})
		default:
			r.Body = io.NopCloser(bytes.NewReader(body))
			serve(w, r)
		}
	}))
	e.Listener.Close()
	e.Listener = ln
	for _, o := range options {
		o(e.Config)
	}
	e.Start()
	e.Address = ln.Addr().String()
	t.Cleanup(func() {
		e.CloseClientConnections()
		e.Close()
	})
	return e
}

// got returns the requests to API endpoints, in order.
func (e *engine) got() []received {
	e.mu.Lock()
	defer e.mu.Unlock()
	var list []received
	for _, r := range e.requests {
		if r.Path != "/health" && r.Path != "/metrics" && r.Path != "/v1/models" {
			list = append(list, r)
		}
	}
	return list
}

// all returns every request, side channels included.
func (e *engine) all() []received {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]received(nil), e.requests...)
}

func (e *engine) setPage(page string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.page = page
}

// setInstead makes the engine answer everything by itself.
func (e *engine) setInstead(h http.HandlerFunc) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.instead = h
}

// answer is a plain JSON answer with usage.
func answer(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	io.WriteString(w, `{"id":"c1","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":11,"completion_tokens":3,"total_tokens":14}}`)
}

// events answers with a stream made of these parts, each flushed on its own.
func events(contentType string, parts ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		for _, p := range parts {
			io.WriteString(w, p)
			w.(http.Flusher).Flush()
		}
	}
}

// readAll reads to the end.
func readAll(t *testing.T, r io.Reader) string {
	t.Helper()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatalf("%v after %q", err, b)
	}
	return string(b)
}

// one is the llmgw option for the model m on these engines.
func one(engines ...*engine) string {
	var b strings.Builder
	b.WriteString("\t\tmodel m {\n\t\t\tendpoint")
	for _, e := range engines {
		b.WriteString(" " + e.Address)
	}
	b.WriteString("\n\t\t}")
	return b.String()
}
