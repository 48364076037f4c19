package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// never is the time of a step that no test waits for.
const never = time.Hour

// patience bounds the wait for something that comes at once.
const patience = 20 * time.Second

// until polls cond for at most patience.
func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.After(patience); !cond(); {
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatalf("%s: not within %s", what, patience)
		}
	}
}

// opened is a stream whose header was read.
type opened struct {
	status int
	body   io.Reader
	cancel context.CancelFunc
}

// rest reads to the end.
func (o *opened) rest() (string, error) {
	rest, err := io.ReadAll(o.body)
	return string(rest), err
}

func openStream(t *testing.T, url, body string) *opened {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); res.Body.Close() })
	return &opened{status: res.StatusCode, body: res.Body, cancel: cancel}
}

// counts are the running and waiting sequences of all ranks.
func counts(e *Engine) (running, waiting int) {
	for _, r := range e.core.Load().ranks {
		s := r.read()
		running += s.running
		waiting += s.waiting
	}
	return running, waiting
}

// A client that leaves frees its sequence at once, even in the middle of a
// step, and a queued one leaves the queue.
func TestDisconnectFrees(t *testing.T) {
	for _, body := range []string{askStream, askChat} {
		cfg := fast()
		cfg.MaxNumSeqs, cfg.Decode = 1, never
		e, srv := newTestEngine(t, cfg)
		start := func() context.CancelFunc {
			ctx, cancel := context.WithCancel(t.Context())
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, srv.URL+"/v1/chat/completions", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			go func() {
				if res, err := http.DefaultTransport.RoundTrip(req); err == nil {
					_, _ = io.Copy(io.Discard, res.Body) // it ends by the cancel
					res.Body.Close()
				}
			}()
			return cancel
		}
		leave := start()
		until(t, "one runs", func() bool { r, _ := counts(e); return r == 1 })
		leaveQueue := start()
		until(t, "one waits", func() bool { _, w := counts(e); return w == 1 })
		leaveQueue()
		until(t, "none waits", func() bool { r, w := counts(e); return r == 1 && w == 0 })
		leave()
		until(t, "none runs", func() bool { r, _ := counts(e); return r == 0 })
		if usage := e.core.Load().ranks[0].read().usage; usage != 0 {
			t.Errorf("%.0f%% of the blocks are held by nobody", usage*100)
		}
	}
}

func TestHangAnswersNobody(t *testing.T) {
	e, srv := newTestEngine(t, fast())
	setFault(t, srv.URL, `{"mode":"hang","count":1}`)
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, srv.URL+"/v1/chat/completions", strings.NewReader(askChat))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	got := make(chan error, 1)
	go func() {
		res, err := http.DefaultTransport.RoundTrip(req)
		if err == nil {
			res.Body.Close()
		}
		got <- err
	}()
	until(t, "the request hangs", func() bool { return e.faults.state().Hits == 1 })
	must(t, http.MethodPost, srv.URL+"/v1/chat/completions", askChat) // the next one is served
	select {
	case err := <-got:
		t.Fatalf("the hanging request ended: %v", err)
	default:
	}
	cancel()
	if err := <-got; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v: want the client's own", err)
	}
}

func TestThousandStreams(t *testing.T) {
	const streams = 1000
	cfg := fast()
	cfg.MaxNumSeqs, cfg.MaxBatchedTokens, cfg.KVBlocks = streams, 8192, 8192
	e, srv := newTestEngine(t, cfg)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: streams}}
	errs := make(chan error, streams)
	var wg sync.WaitGroup
	for i := range streams {
		wg.Go(func() {
			body := fmt.Sprintf(`{"messages":[{"role":"user","content":"stream %d"}],"max_tokens":8,"ignore_eos":true,"stream":true}`, i)
			res, err := client.Post(srv.URL+"/v1/chat/completions", "application/json", strings.NewReader(body))
			if err != nil {
				errs <- err
				return
			}
			defer res.Body.Close()
			got, err := io.ReadAll(res.Body)
			if n := strings.Count(string(got), "data: {"); err != nil || n != 9 || !strings.HasSuffix(string(got), "data: [DONE]\n\n") {
				errs <- fmt.Errorf("stream %d: %w, %d chunks: %.200s", i, err, n, got)
			}
		})
	}
	wg.Wait()
	client.CloseIdleConnections()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	if n := e.core.Load().inflight.Load(); n != 0 {
		t.Errorf("%d sequences in flight at rest", n)
	}
}

// A stream that keeps up with the engine sees its last token and its end
// together.
func TestFastStreamsEnd(t *testing.T) {
	e, _ := newTestEngine(t, fast())
	for range 500 {
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/v1/chat/completions", strings.NewReader(askStream))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		e.Handler().ServeHTTP(w, r)
		if got := w.Body.String(); strings.Count(got, `"finish_reason":"length"`) != 1 || !strings.HasSuffix(got, "data: [DONE]\n\n") {
			t.Fatalf("got %s", got)
		}
	}
}

// With n choices each has its own role, tokens and finish.
func TestStreamChoices(t *testing.T) {
	_, srv := newTestEngine(t, fast())
	got := must(t, http.MethodPost, srv.URL+"/v1/chat/completions",
		`{"messages":[{"role":"user","content":"x"}],"max_tokens":4,"ignore_eos":true,"n":3,"stream":true,"stream_options":{"include_usage":true}}`)
	for i := range 3 {
		at := fmt.Sprintf(`"choices":[{"index":%d,`, i)
		if n := strings.Count(got, at); n != 5 {
			t.Errorf("choice %d has %d chunks: want 5", i, n)
		}
	}
	if !strings.Contains(got, `"completion_tokens":12,`) || strings.Count(got, `"finish_reason":"length"`) != 3 {
		t.Errorf("got %s", got)
	}
}

func TestQueueLimit(t *testing.T) {
	cfg := fast()
	cfg.MaxQueued, cfg.Decode = 2, never
	e, srv := newTestEngine(t, cfg)
	first, second := openStream(t, srv.URL, askStream), openStream(t, srv.URL, askStream)
	c := readCapture(t, "err_queue_limit_503")
	if status, _, body, err := send(t, http.MethodPost, srv.URL+"/v1/chat/completions", askStream); status != 503 || body != c.body || err != nil {
		t.Errorf("third request: %d %s %v", status, body, err)
	}
	if n := e.core.Load().rejected.Load(); n != 1 {
		t.Errorf("%d rejections counted: want 1", n)
	}
	first.cancel()
	until(t, "one has left", func() bool { return e.core.Load().inflight.Load() == 1 })
	if third := openStream(t, srv.URL, askStream); third.status != 200 || second.status != 200 {
		t.Errorf("status %d with room", third.status)
	}
}

// Requests spread over the ranks, and a client may name one.
func TestDataParallel(t *testing.T) {
	cfg := fast()
	cfg.DataParallel, cfg.Decode = 2, never
	e, srv := newTestEngine(t, cfg)
	openStream(t, srv.URL, askStream)
	openStream(t, srv.URL, askStream)
	for _, r := range e.core.Load().ranks {
		until(t, "each rank runs one of two requests", func() bool { return r.read().running == 1 })
	}
	status, _, body, err := send(t, http.MethodPost, srv.URL+"/v1/chat/completions", askChat, "X-Data-Parallel-Rank", "2")
	if status != 400 || err != nil {
		t.Errorf("rank 2 of 2: %d %s %v", status, body, err)
	}
}
