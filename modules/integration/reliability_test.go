package integration

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// cut ends the connection of a request with a reset, after what was written.
func cut(w http.ResponseWriter) {
	http.NewResponseController(w).Flush()
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	conn.(*net.TCPConn).SetLinger(0)
	conn.Close()
}

// cutSilently resets the connection of a request without a byte of an answer.
func cutSilently(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	conn.(*net.TCPConn).SetLinger(0)
	conn.Close()
}

const tokenEvent = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\"finish_reason\":null}]}\n\n"

// TestR16_WhatIsSentAgain: which failures go to another replica, and which
// would only generate twice.
func TestR16_WhatIsSentAgain(t *testing.T) { bothPaths(t, whatIsSentAgain) }

func whatIsSentAgain(t *testing.T, site string) {
	status := func(code int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(code)
			io.WriteString(w, body)
		}
	}
	reset := func(w http.ResponseWriter, _ *http.Request) { cutSilently(w) }
	for _, c := range []struct {
		name, option string
		fails        http.HandlerFunc
		status       int
		again        bool
	}{
		{"503", "", status(503, "busy"), 200, true},
		{"429", "", status(429, "busy"), 200, true},
		{"shutdown of vLLM", "", status(500, `{"error":{"message":"cannot schedule new futures after shutdown"}}`), 200, true},
		{"vLLM's core died", "", status(500, `{"error":{"message":"EngineCore encountered an issue. See stack trace (above) for the root cause.","code":500}}`), 200, true},
		{"the same, not allowed", "resend_after_send off", status(500, `{"error":{"message":"EngineCore encountered an issue. See stack trace (above) for the root cause.","code":500}}`), 500, false},
		{"reset", "", reset, 200, true},
		{"reset, not allowed", "resend_after_send off", reset, 502, false},
		{"no retries", "retries 0", status(503, "busy"), 503, false},
		{"500", "", status(500, "boom"), 500, false},
		{"502", "", status(502, "boom"), 502, false},
		{"400", "", status(400, "bad"), 400, false},
		{"header timeout", "first_token_timeout 50ms", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, 504, false},
		{"cut", "", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, "{")
			cut(w)
		}, 200, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var bad atomic.Int32
			// Whichever is asked first fails.
			first := func(w http.ResponseWriter, r *http.Request) {
				if bad.Add(1) == 1 {
					c.fails(w, r)
					return
				}
				answer(w, r)
			}
			a, b := newEngine(t, first), newEngine(t, first)
			g := start(t, one(a, b)+"\n\t\treliability {\n\t\t\t"+c.option+"\n\t\t}", site)
			res, err := http.DefaultClient.Do(g.request(t, t.Context(), http.MethodPost, "/v1/chat/completions", request))
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			text, _ := io.ReadAll(res.Body)
			if res.StatusCode != c.status {
				t.Errorf("%s %s", res.Status, text)
			}
			if n := bad.Load(); n != 1 && !c.again || n != 2 && c.again {
				t.Errorf("%d requests reached the engines", n)
			}
			if c.status == 503 && res.Header.Get("Retry-After") != "1" {
				t.Errorf("Retry-After %q", res.Header.Get("Retry-After"))
			}
		})
	}
}

// TestC02_TheSameBytesGoToTheNextReplica: a large body after a refused
// connection.
func TestC02_TheSameBytesGoToTheNextReplica(t *testing.T) { bothPaths(t, sameBytes) }

func sameBytes(t *testing.T, site string) {
	dead := newEngine(t, answer)
	dead.Close()
	e := newEngine(t, answer)
	g := start(t, one(dead, e), site)
	for _, n := range []int{2, 5 << 20} {
		body := `{"model":"m","x":"` + strings.Repeat("b", n) + `"}`
		for range 4 {
			if res, text := g.post(t, "/v1/chat/completions", body); res.StatusCode != http.StatusOK {
				t.Fatalf("%s %s", res.Status, text)
			}
			got := e.got()
			if got[len(got)-1].Body != body {
				t.Error("the engine got another body")
			}
		}
	}
}

// TestWhenAllRefuse: the engines' own last answer is passed on.
func TestWhenAllRefuse(t *testing.T) { bothPaths(t, whenAllRefuse) }

func whenAllRefuse(t *testing.T, site string) {
	busy := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "9")
		w.WriteHeader(http.StatusTooManyRequests)
		io.WriteString(w, `{"error":{"message":"the engine is busy","type":"x","code":429}}`)
	}
	a, b := newEngine(t, busy), newEngine(t, busy)
	g := start(t, one(a, b), site)
	res, text := g.post(t, "/v1/chat/completions", request)
	isError(t, res, text, http.StatusTooManyRequests)
	if !strings.Contains(text, "the engine is busy") || res.Header.Get("Retry-After") != "9" {
		t.Errorf("%s, Retry-After %q", text, res.Header.Get("Retry-After"))
	}
	if n := len(a.got()) + len(b.got()); n != 2 {
		t.Errorf("%d requests reached the engines", n)
	}
	// Both cool down now, and are asked nothing.
	res, text = g.post(t, "/v1/chat/completions", request)
	isError(t, res, text, http.StatusServiceUnavailable)
	if !strings.Contains(text, "2 cooling") || res.Header.Get("Retry-After") == "" {
		t.Errorf("%s", text)
	}
}

// TestS08_AStreamThatBreaks: no second attempt, and no clean end.
func TestS08_AStreamThatBreaks(t *testing.T) { bothPaths(t, streamThatBreaks) }

func streamThatBreaks(t *testing.T, site string) {
	breaks := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for range 5 {
			io.WriteString(w, tokenEvent)
		}
		cut(w)
	}
	a, b := newEngine(t, breaks), newEngine(t, breaks)
	g := start(t, one(a, b), site)
	res, err := http.DefaultClient.Do(g.request(t, t.Context(), http.MethodPost, "/v1/chat/completions", streamRequest))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err == nil {
		t.Error("the stream ended as if it were complete")
	}
	if got := string(text); !strings.HasPrefix(got, strings.Repeat(tokenEvent, 5)) || strings.Contains(got, "[DONE]") || !strings.Contains(got, `"code":"stream_broken"`) {
		t.Errorf("got %q", got)
	}
	if n := len(a.got()) + len(b.got()); n != 1 {
		t.Errorf("%d requests reached the engines", n)
	}
	entry := g.accessLog(t, res.Header.Get("X-Request-Id"))
	if entry["outcome"] != "broken" || entry["completion_tokens_estimate"] != 5.0 {
		t.Errorf("logged %v", entry)
	}
	for id, r := range g.replicas(t) {
		if r.Inflight != 0 {
			t.Errorf("%s: %d in flight", id, r.Inflight)
		}
	}
}

// TestS13_CancelReachesTheEngine in all phases of a request.
func TestS13_CancelReachesTheEngine(t *testing.T) { bothPaths(t, cancelReaches) }

func cancelReaches(t *testing.T, site string) {
	gone := make(chan time.Time, 1)
	arrived := make(chan struct{}, 1)
	e := newEngine(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(readAll(t, r.Body), `"stream":true`) {
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, tokenEvent)
			http.NewResponseController(w).Flush()
		}
		arrived <- struct{}{}
		<-r.Context().Done()
		gone <- time.Now()
	})
	g := start(t, one(e), site)
	for _, body := range []string{request, streamRequest} {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			res, err := http.DefaultClient.Do(g.request(t, ctx, http.MethodPost, "/v1/chat/completions", body))
			if err == nil {
				io.Copy(io.Discard, res.Body)
				res.Body.Close()
			}
		}()
		<-arrived
		left := time.Now()
		cancel()
		t.Logf("the engine noticed after %v", (<-gone).Sub(left))
		<-ended
		eventually(t, "the slot is released", func() bool { return g.replicas(t)[e.Address].Inflight == 0 })
	}
	eventually(t, "both are counted as cancelled", func() bool {
		v, _ := g.metric(t, `llmgw_outcomes_total{model="m",outcome="cancelled"}`)
		return v == 2
	})
}

// TestS15_EnginesCloseIdleConnections without a word.
func TestS15_EnginesCloseIdleConnections(t *testing.T) {
	e := newEngineAt(t, "127.0.0.1:0", answer, func(s *http.Server) { s.IdleTimeout = 20 * time.Millisecond })
	g := start(t, one(e), "\tllm")
	for i := range 200 {
		// Around the moment at which the engine closes.
		<-time.After(time.Duration(15+i%10) * time.Millisecond)
		if res, text := g.post(t, "/v1/chat/completions", request); res.StatusCode != http.StatusOK {
			t.Fatalf("round %d: %s %s", i, res.Status, text)
		}
	}
}

// TestR12_HungEngine: healthy by its health page, and never an answer.
func TestR12_HungEngine(t *testing.T) {
	var hangs atomic.Bool
	hangs.Store(true)
	serve := func(w http.ResponseWriter, r *http.Request) {
		if hangs.Load() {
			<-r.Context().Done()
			return
		}
		answer(w, r)
	}
	hung := newEngine(t, serve)
	good := newEngine(t, answer)
	g := start(t, one(hung, good)+"\n\t\treliability {\n\t\t\tfirst_token_timeout 100ms\n\t\t\tcooldown 1s\n\t\t}", "\tllm")
	failed := 0
	for range 40 {
		if res, _ := g.post(t, "/v1/chat/completions", request); res.StatusCode != http.StatusOK {
			failed++
		}
	}
	if failed > 5 {
		t.Errorf("%d of 40 requests went to the hung engine and failed", failed)
	}
	r := g.replicas(t)[hung.Address]
	if r.State != "cooling" || !strings.Contains(r.Reason, "no token in time") {
		t.Errorf("state %q, reason %q", r.State, r.Reason)
	}
	// Who waited in vain was not refused by the gateway.
	if v, _ := g.metric(t, `llmgw_outcomes_total{model="m",outcome="engine_error"}`); int(v) != failed {
		t.Errorf("%v engine errors are counted, want %d", v, failed)
	}
	// It comes back only after a real success.
	hangs.Store(false)
	eventually(t, "it is used again", func() bool {
		res, _ := g.post(t, "/v1/chat/completions", request)
		return res.Header.Get("X-Llmgw-Replica") == hung.Address && res.StatusCode == http.StatusOK && g.replicas(t)[hung.Address].State == "ready"
	})
}

// TestStreamThatStops: one token, then silence.
func TestStreamThatStops(t *testing.T) {
	e := newEngine(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, tokenEvent)
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	g := start(t, one(e)+"\n\t\treliability {\n\t\t\tidle_token_timeout 100ms\n\t\t}", "\tllm")
	res, err := http.DefaultClient.Do(g.request(t, t.Context(), http.MethodPost, "/v1/chat/completions", streamRequest))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err == nil || !strings.HasPrefix(string(text), tokenEvent) || !strings.Contains(string(text), `"error"`) {
		t.Errorf("got %q, %v", text, err)
	}
}

// TestR01_CountsAreZeroAtRest after many requests that end in every way.
func TestR01_CountsAreZeroAtRest(t *testing.T) {
	slow := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, tokenEvent)
		http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
		case <-time.After(5 * time.Millisecond):
			io.WriteString(w, "data: [DONE]\n\n")
		}
	}
	engines := []*engine{newEngine(t, slow), newEngine(t, slow), newEngine(t, slow)}
	g := start(t, one(engines...), "\tllm")
	var wg sync.WaitGroup
	for i := range 300 {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if i%4 == 0 { // gone before headers
				time.AfterFunc(time.Duration(i%7)*time.Millisecond, cancel)
			}
			res, err := http.DefaultClient.Do(g.request(t, ctx, http.MethodPost, "/v1/chat/completions", streamRequest))
			if err != nil {
				return
			}
			defer res.Body.Close()
			if i%4 == 1 { // gone in mid-stream
				bufio.NewReader(res.Body).ReadString('\n')
				return
			}
			io.Copy(io.Discard, res.Body)
		})
	}
	wg.Wait()
	http.DefaultClient.CloseIdleConnections()
	eventually(t, "all counts are 0", func() bool {
		for _, r := range g.replicas(t) {
			if r.Inflight != 0 || r.PendingTokens != 0 {
				return false
			}
		}
		return true
	})
	// One restarts and counts from nothing: it must not attract everything.
	engines[1].Close()
	g.post(t, "/v1/chat/completions", streamRequest)
	eventually(t, "it is seen to be down", func() bool { return g.replicas(t)[engines[1].Address].State == "down" })
	engines[1] = newEngineAt(t, engines[1].Address, slow)
	eventually(t, "it is back", func() bool { return g.replicas(t)[engines[1].Address].State == "ready" })
	for i, n := range spread(t, g, 90, engines...) {
		if n < 15 || n > 45 {
			t.Errorf("replica %d got %d of 90", i, n)
		}
	}
}

// TestRefusalsAttractNothing: a replica that answers 503 at once looks idle.
func TestRefusalsAttractNothing(t *testing.T) {
	busy := newEngine(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	engines := []*engine{newEngine(t, answer), newEngine(t, answer), newEngine(t, answer)}
	g := start(t, one(append(engines, busy)...), "\tllm")
	for range 30 {
		spread(t, g, 8, engines...)
	}
	if n := len(busy.got()); n > 12 {
		t.Errorf("the refusing replica was asked %d times", n)
	}
	if v, _ := g.metric(t, fmt.Sprintf(`llmgw_replicas{model="m",state=%q}`, "cooling")); v != 1 {
		t.Errorf("%v replicas are shown as cooling", v)
	}
}
