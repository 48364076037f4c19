package integration

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// TestR12_SilentEngine: /health and /metrics answer, and no request ever gets a
// token. It is out long before the first of them runs into its time limit.
func TestR12_SilentEngine(t *testing.T) {
	wakes := make(chan struct{})
	wake := sync.OnceFunc(func() { close(wakes) })
	defer wake()
	tokens := events("text/event-stream", tokenEvent, "data: [DONE]\n\n")
	silent := newEngine(t, func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-wakes:
			tokens(w, r)
		case <-r.Context().Done():
		}
	})
	silent.setPage(page(0, 0, 0))
	good := newEngine(t, tokens)
	g := start(t, one(silent, good)+"\n\t\treliability {\n\t\t\tidle_token_timeout 200ms\n\t\t\tfirst_token_timeout 50s\n\t\t}", "\tllm {\n\t\tdebug_headers on\n\t}")
	var wg sync.WaitGroup
	defer wg.Wait()
	defer wake()
	ask := func(headers ...string) {
		wg.Go(func() {
			res, err := http.DefaultClient.Do(g.request(t, t.Context(), http.MethodPost, "/v1/chat/completions", streamRequest, headers...))
			if err != nil {
				t.Error(err)
				return
			}
			defer res.Body.Close()
			if text, err := io.ReadAll(res.Body); res.StatusCode != http.StatusOK || err != nil {
				t.Errorf("%s %s, %v", res.Status, text, err)
			}
		})
	}
	for range 4 {
		ask("X-Llmgw-Replica", silent.Address)
	}
	eventually(t, "it is out", func() bool {
		r := g.replicas(t)[silent.Address]
		return r.State == "cooling" && strings.Contains(r.Reason, "no progress")
	})
	for range 10 {
		ask()
	}
	// All but the one that may try, after a pause, whether it is well again.
	eventually(t, "the others are served elsewhere", func() bool { return len(good.got()) >= 9 })
	if n := len(silent.got()); n > 5 {
		t.Errorf("%d requests reached it", n)
	}
	wake()
	eventually(t, "it is back, since it answers", func() bool { return g.replicas(t)[silent.Address].State == "ready" })
}

// TestS08_AReplicaThatBreaksStreams looks fine until its first token, each time.
func TestS08_AReplicaThatBreaksStreams(t *testing.T) {
	breaks := newEngine(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, tokenEvent)
		cut(w)
	})
	good := newEngine(t, events("text/event-stream", tokenEvent, "data: [DONE]\n\n"))
	g := start(t, one(breaks, good), "\tllm")
	for range 40 {
		res, err := http.DefaultClient.Do(g.request(t, t.Context(), http.MethodPost, "/v1/chat/completions", streamRequest))
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, res.Body)
		res.Body.Close()
		if strings.Contains(g.replicas(t)[breaks.Address].Reason, "broke off") {
			return
		}
	}
	t.Errorf("after %d streams it is still used as if nothing were", len(breaks.got()))
}
