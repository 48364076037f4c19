package sim

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"
)

// running is an engine that Run serves.
type running struct {
	engine *Engine
	url    string
	stop   context.CancelFunc // its SIGTERM
	ended  chan error
}

func run(t *testing.T, cfg Config) *running {
	t.Helper()
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r := &running{engine: e, url: "http://" + ln.Addr().String(), stop: cancel, ended: make(chan error, 1)}
	go func() { r.ended <- e.Run(ctx, ln) }()
	t.Cleanup(func() { cancel(); e.Close() })
	return r
}

func (r *running) healthy(t *testing.T) bool {
	status, _, _, err := send(t, "GET", r.url+"/health", "")
	return err == nil && status == 200
}

func (r *running) end(t *testing.T) error {
	t.Helper()
	select {
	case err := <-r.ended:
		return err
	case <-time.After(patience):
		t.Fatalf("Run has not returned within %s", patience)
		return nil
	}
}

// With shutdown-timeout 0 what is in flight ends at once under 200, as
// "abort", and the port closes.
func TestStopAborts(t *testing.T) {
	cfg := fast()
	cfg.Decode = never
	r := run(t, cfg)
	until(t, "healthy", func() bool { return r.healthy(t) })
	stream := openStream(t, r.url, askStream)
	whole := make(chan string, 1)
	go func() {
		_, _, body, _ := send(t, "POST", r.url+"/v1/chat/completions", askChat)
		whole <- body
	}()
	until(t, "both are in flight", func() bool { return r.engine.core.Load().inflight.Load() == 2 })
	r.stop()
	rest, err := stream.rest()
	frames := strings.Split(strings.TrimSpace(rest), "\n\n")
	if err != nil || len(frames) < 3 || frames[len(frames)-1] != "data: [DONE]" {
		t.Fatalf("the stream ended with %v: %q", err, frames)
	}
	// The last chunk is the recorded one but for its values.
	last := strings.TrimPrefix(frames[len(frames)-2], "data: ")
	recorded := `{"id":"chatcmpl-9863f95c5a8211c4","object":"chat.completion.chunk","created":1795954283,"model":"tiny","choices":[{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"abort","stop_reason":null,"token_ids":null}],"system_fingerprint":"vllm-0.32.0-09d22351"}`
	if got, want := shape(t, last), shape(t, recorded); got != want || !strings.Contains(last, `"delta":{"content":""},"logprobs":null,"finish_reason":"abort"`) {
		t.Errorf("last chunk %s: want one like %s", last, recorded)
	}
	if body := <-whole; !strings.Contains(body, `"finish_reason":"abort"`) {
		t.Errorf("the whole answer is %s", body)
	}
	if err := r.end(t); err != nil {
		t.Error(err)
	}
	if r.healthy(t) {
		t.Error("the port is still open")
	}
}

// With a timeout what is in flight finishes, /health stays 200 and new requests
// get 500.
func TestStopDrains(t *testing.T) {
	cfg := fast()
	cfg.ShutdownTimeout, cfg.Decode = never, 20*time.Millisecond
	r := run(t, cfg)
	until(t, "healthy", func() bool { return r.healthy(t) })
	stream := openStream(t, r.url, askStream)
	r.stop()
	until(t, "draining", func() bool { return r.engine.core.Load().draining.Load() })
	status, _, body, err := send(t, "POST", r.url+"/v1/chat/completions", askChat)
	if want := string(marshal(errShutdown.body())); status != 500 || body != want || err != nil {
		t.Errorf("a new request got %d %s %v: want 500 %s", status, body, err, want)
	}
	if !r.healthy(t) {
		t.Error("/health is not 200 while it drains")
	}
	rest, err := stream.rest()
	if err != nil || !strings.Contains(rest, `"finish_reason":"length"`) || !strings.HasSuffix(rest, "data: [DONE]\n\n") {
		t.Errorf("the stream ended with %v: %q", err, rest)
	}
	if !r.healthy(t) {
		t.Error("it left before its timeout")
	}
	r.engine.Close()
	if err := r.end(t); err != nil {
		t.Error(err)
	}
}

func TestCrash(t *testing.T) {
	r := run(t, fast())
	until(t, "healthy", func() bool { return r.healthy(t) })
	setFault(t, r.url, `{"mode":"crash"}`)
	if err := r.end(t); !errors.Is(err, ErrCrashed) {
		t.Errorf("Run returned %v: want ErrCrashed", err)
	}
	if r.healthy(t) {
		t.Error("the port is still open")
	}
}

// After a restart the cache is empty, the counters are zero and the fault is
// gone.
func TestCrashRestarts(t *testing.T) {
	r := run(t, fast())
	until(t, "healthy", func() bool { return r.healthy(t) })
	long := `{"messages":[{"role":"user","content":"` + strings.Repeat("word ", 50) + `"}],"max_tokens":2}`
	chatUsage(t, r.url, long)
	if u, _ := chatUsage(t, r.url, long); u.PromptDetails.Cached == 0 {
		t.Fatal("nothing is cached before the crash")
	}
	first := r.engine.core.Load()
	setFault(t, r.url, `{"mode":"crash","restart_after":"10ms"}`)
	// It answers the one who asked for the crash before it does so.
	until(t, "healthy again", func() bool { return r.engine.core.Load() != first && r.healthy(t) })
	var state faultState
	if err := json.Unmarshal([]byte(must(t, "GET", r.url+"/sim/faults", "")), &state); err != nil || state.Mode != ModeNone {
		t.Errorf("fault %q after the restart, %v", state.Mode, err)
	}
	if u, _ := chatUsage(t, r.url, long); u.PromptDetails.Cached != 0 {
		t.Errorf("%d tokens cached after the restart", u.PromptDetails.Cached)
	}
	if st := r.engine.core.Load().ranks[0].read(); st.queries != st.prompt || st.hits != 0 {
		t.Errorf("%.0f queries and %.0f hits of %.0f tokens since the restart", st.queries, st.hits, st.prompt)
	}
	r.stop()
	if err := r.end(t); err != nil {
		t.Error(err)
	}
}

func TestStartupDelay(t *testing.T) {
	cfg := fast()
	cfg.StartupDelay = 20 * time.Millisecond
	r := run(t, cfg)
	until(t, "healthy", func() bool { return r.healthy(t) })
	cfg.StartupDelay = never
	late := run(t, cfg)
	until(t, "the port is closed", func() bool {
		_, _, _, err := send(t, "GET", late.url+"/health", "")
		return errors.Is(err, syscall.ECONNREFUSED)
	})
	late.stop() // while it loads
	if err := late.end(t); err != nil {
		t.Error(err)
	}
}

func TestClose(t *testing.T) {
	r := run(t, fast())
	until(t, "healthy", func() bool { return r.healthy(t) })
	r.engine.Close()
	r.engine.Close()
	if err := r.end(t); err != nil {
		t.Error(err)
	}
}

// Other ranks of a replica answer for their health alone.
func TestHigherRankServesHealthOnly(t *testing.T) {
	cfg := fast()
	cfg.Nodes, cfg.Rank = 2, 1
	_, srv := newTestEngine(t, cfg)
	must(t, "GET", srv.URL+"/health", "")
	for _, path := range []string{"/v1/models", "/metrics", "/v1/chat/completions"} {
		if status, _, body, err := send(t, "GET", srv.URL+path, ""); status != 404 || body != `{"detail":"Not Found"}` || err != nil {
			t.Errorf("%s: %d %s %v", path, status, body, err)
		}
	}
}

func TestAPIKey(t *testing.T) {
	cfg := fast()
	cfg.APIKey, cfg.RequestIDHeaders = "secret", true
	_, srv := newTestEngine(t, cfg)
	c := readCapture(t, "err_auth_401")
	for _, header := range [][]string{nil, {"Authorization", "Bearer wrong"}, {"Authorization", "secret"}} {
		status, h, body, err := send(t, "GET", srv.URL+"/v1/models", "", header...)
		if status != 401 || body != c.body || err != nil || h.Get("X-Request-Id") == "" || h.Get("Vary") != "" {
			t.Errorf("%v: %d %s %v %v: want %s", header, status, body, h, err, c.body)
		}
	}
	must(t, "GET", srv.URL+"/v1/models", "", "Authorization", "Bearer secret")
	must(t, "GET", srv.URL+"/metrics", "")
	must(t, "GET", srv.URL+"/health", "")
	must(t, "POST", srv.URL+"/tokenize", `{"prompt":"x"}`)
}
