package integration

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
)

// TestReloadKeepsStateAndStreams replaces the config while a stream is open.
func TestReloadKeepsStateAndStreams(t *testing.T) {
	step := make(chan struct{})
	e := newEngine(t, func(w http.ResponseWriter, r *http.Request) {
		if body := readAll(t, r.Body); !strings.Contains(body, "stream") {
			answer(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for range 3 {
			io.WriteString(w, "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n")
			w.(http.Flusher).Flush()
			<-step
		}
		io.WriteString(w, "data: [DONE]\n\n")
	})
	other := newEngine(t, answer)
	g := start(t, one(e, other), "\tllm")
	g.admin(t, "/llmgw/replicas/drain", fmt.Sprintf(`{"replica":%q}`, other.Address), nil)
	g.post(t, "/v1/chat/completions", request)

	res, err := http.DefaultClient.Do(g.request(t, t.Context(), http.MethodPost, "/v1/chat/completions", streamRequest))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewReader(res.Body)
	if _, err := lines.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		g.load(t, g.caddyfile(one(e, other), fmt.Sprintf("\theader X-Version %d\n\tllm", i)))
		list := g.replicas(t)
		if list[e.Address].Inflight != 1 {
			t.Errorf("after reload %d: %d in flight, want the stream", i, list[e.Address].Inflight)
		}
		if list[other.Address].State != "draining" {
			t.Errorf("after reload %d: the drain is forgotten: %s", i, list[other.Address].State)
		}
	}
	if v, _ := g.metric(t, `llmgw_requests_total{model="m",pool="default",status="200"}`); v != 1 {
		t.Errorf("%v requests counted after the reloads, want 1", v)
	}
	for range 3 {
		step <- struct{}{}
	}
	if rest, err := io.ReadAll(lines); err != nil || !strings.HasSuffix(string(rest), "data: [DONE]\n\n") {
		t.Errorf("the stream ended with %q, %v", rest, err)
	}
	eventually(t, "the stream is counted", func() bool {
		v, _ := g.metric(t, `llmgw_requests_total{model="m",pool="default",status="200"}`)
		return v == 2 && g.replicas(t)[e.Address].Inflight == 0
	})
}

// TestNothingLeaks reloads and stops many times.
func TestNothingLeaks(t *testing.T) {
	e := newEngine(t, answer)
	e.setPage(page(0, 0, 0))
	g := start(t, one(e), "\tllm")
	g.known(t, e)
	before := settled(t, 0)
	for i := range 10 {
		g.load(t, g.caddyfile(one(e), fmt.Sprintf("\theader X-Version %d\n\tllm", i)))
		eventually(t, "a request is answered", func() bool {
			// A connection may still meet the old server, which closes it.
			res, err := http.DefaultClient.Do(g.request(t, t.Context(), http.MethodPost, "/v1/chat/completions", request))
			if err != nil {
				return false
			}
			defer res.Body.Close()
			return res.StatusCode == http.StatusOK && readAll(t, res.Body) != ""
		})
	}
	if after := settled(t, before+5); after > before+5 {
		t.Errorf("%d goroutines before, %d after", before, after)
	}
	// Validating beside the running config starts nothing.
	cfg, err := adapt(g.caddyfile("\t\tendpoint "+e.Address, "\tllm"))
	if err != nil {
		t.Fatal(err)
	}
	requests := len(e.all())
	var parsed caddy.Config
	if err := json.Unmarshal(cfg, &parsed); err != nil {
		t.Fatal(err)
	}
	g.admin(t, "/llmgw/replicas/drain", fmt.Sprintf(`{"replica":%q}`, e.Address), nil)
	if err := caddy.Validate(&parsed); err != nil {
		t.Fatal(err)
	}
	for _, r := range e.all()[requests:] {
		if r.Path == "/v1/models" {
			t.Error("validating asked the engine for its models")
		}
	}
	if g.replicas(t)[e.Address].State != "draining" {
		t.Error("validating changed the state")
	}
}

// settled waits for the number of goroutines to fall to want, or, if that is 0, to
// stop falling, and returns it. Connections to engines are kept for seconds.
func settled(t *testing.T, want int) int {
	t.Helper()
	http.DefaultClient.CloseIdleConnections()
	last, same := runtime.NumGoroutine(), 0
	eventually(t, fmt.Sprintf("at most %d goroutines", want), func() bool {
		n := runtime.NumGoroutine()
		if n == last {
			same++
		} else {
			last, same = n, 0
		}
		return n <= want || want == 0 && same > 200
	})
	return last
}
