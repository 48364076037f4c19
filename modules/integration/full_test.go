package integration

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
)

// TestFullEngines: engines that refuse what is too much for them are not ill. As
// soon as a request ends there is room for another.
func TestFullEngines(t *testing.T) {
	const slots = 4
	bothPaths(t, func(t *testing.T, site string) {
		finish := make(chan struct{})
		var held atomic.Int64
		newFull := func() *engine {
			var running atomic.Int64
			return newEngine(t, func(w http.ResponseWriter, r *http.Request) {
				defer running.Add(-1)
				if running.Add(1) > slots {
					w.WriteHeader(http.StatusTooManyRequests)
					return
				}
				held.Add(1)
				defer held.Add(-1)
				select {
				case <-finish:
				case <-r.Context().Done():
				}
				answer(w, r)
			})
		}
		engines := []*engine{newFull(), newFull(), newFull()}
		g := start(t, one(engines...)+"\n\t\tadmission {\n\t\t\tqueue_ttl 1s\n\t\t}", site)
		var wg sync.WaitGroup
		served := make(chan struct{}, 100)
		ask := func() {
			wg.Go(func() {
				if res, text := g.post(t, "/v1/chat/completions", request); res.StatusCode != http.StatusOK {
					t.Errorf("%s %s", res.Status, text)
				}
				served <- struct{}{}
			})
		}
		full := func() bool { return held.Load() == int64(slots*len(engines)) }
		for range slots * len(engines) {
			n := held.Load()
			ask()
			eventually(t, "it has begun", func() bool { return held.Load() > n })
		}
		// What is too much is refused as by the engines, or waits in vain.
		var more sync.WaitGroup
		for range 8 {
			more.Go(func() {
				res, text := g.post(t, "/v1/chat/completions", request)
				switch c := res.StatusCode; {
				case c != http.StatusServiceUnavailable && c != http.StatusTooManyRequests && c != http.StatusGatewayTimeout:
					t.Errorf("%s %v %s", res.Status, res.Header, text)
				case res.Header.Get("Retry-After") != "1":
					t.Errorf("%s: Retry-After %q", res.Status, res.Header.Get("Retry-After"))
				}
			})
		}
		more.Wait()
		for range 3 * slots { // each before a pause would be over
			finish <- struct{}{}
			<-served
			ask()
			eventually(t, "the room that there is is used", full)
		}
		for _, e := range engines {
			if r := g.replicas(t)[e.Address]; r.State != "full" && r.State != "ready" {
				t.Errorf("%s is %s: %s", e.Address, r.State, r.Reason)
			}
		}
		close(finish)
		wg.Wait()
	})
}

// TestS13_ClientLeavesAfterARefusal: a client that leaves while its request waits for another turn,
// since an engine refused it as full, is one that left, and no failure.
func TestS13_ClientLeavesAfterARefusal(t *testing.T) {
	s := &slots{finish: make(chan struct{})}
	e := newEngine(t, func(w http.ResponseWriter, r *http.Request) {
		if s.running.Load() > 0 {
			w.Header().Set("Retry-After", "10")
			http.Error(w, `{"error":{"message":"full"}}`, http.StatusServiceUnavailable)
			return
		}
		s.serve(w, r)
	})
	g := start(t, "\t\tmodel m {\n\t\t\tendpoint "+e.Address+"\n\t\t}\n", "\tllm")
	var wg sync.WaitGroup
	wg.Go(func() { g.post(t, "/v1/chat/completions", request) })
	eventually(t, "one runs", func() bool { return s.running.Load() == 1 })
	ctx, cancel := context.WithCancel(t.Context())
	wg.Go(func() {
		if res, err := http.DefaultClient.Do(g.request(t, ctx, http.MethodPost, "/v1/chat/completions", request)); err == nil {
			res.Body.Close()
			t.Errorf("it was answered: %s", res.Status)
		}
	})
	eventually(t, "one waits", func() bool { return g.waiting(t) == 1 })
	cancel()
	eventually(t, "it is counted as one that left", func() bool {
		n, _ := g.metric(t, `llmgw_requests_total{model="m",pool="default",status="499"}`)
		o, _ := g.metric(t, `llmgw_outcomes_total{model="m",outcome="cancelled"}`)
		return n == 1 && o == 1
	})
	if n, ok := g.metric(t, `llmgw_schedule_failures_total{model="m",reason="replica_failed"}`); ok {
		t.Errorf("%v failures are counted", n)
	}
	close(s.finish)
	wg.Wait()
}
