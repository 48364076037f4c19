package integration

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/llmgw/llmgw/modules/llmgw"
)

// narrow is a model on one engine of so many slots, whose bands let nothing queue
// in it.
func narrow(e *engine, slots int, more string) string {
	bands := ""
	for _, b := range []string{"platinum", "gold", "silver", "bronze"} {
		bands += fmt.Sprintf("\t\tband %s {\n\t\t\tceiling 0.01\n\t\t}\n", b)
	}
	return fmt.Sprintf("%s\t\tmodel m {\n\t\t\tendpoint %s {\n\t\t\t\tbatch_capacity %d\n\t\t\t}\n\t\t}\n%s", bands, e.Address, slots, more)
}

// slots is an engine whose requests each wait until they are told to end.
type slots struct {
	finish  chan struct{}
	running atomic.Int64
	most    atomic.Int64
	served  atomic.Int64
}

func (s *slots) serve(w http.ResponseWriter, r *http.Request) {
	n := s.running.Add(1)
	defer s.running.Add(-1)
	for {
		most := s.most.Load()
		if n <= most || s.most.CompareAndSwap(most, n) {
			break
		}
	}
	select {
	case <-s.finish:
		s.served.Add(1)
		answer(w, r)
	case <-r.Context().Done():
	}
}

// waiting returns how many requests wait.
func (g *gateway) waiting(t *testing.T) (n int) {
	t.Helper()
	var list []struct{ Requests int }
	g.admin(t, "/llmgw/queue", "", &list)
	for _, q := range list {
		n += q.Requests
	}
	return n
}

// TestQ01_QueueThroughReloads: what waits is neither lost nor served twice, and
// never more runs than there are slots, whatever becomes of the config.
func TestQ01_QueueThroughReloads(t *testing.T) {
	bothPaths(t, func(t *testing.T, site string) {
		site = strings.Replace(site, "llm_models\n", "llm_models\n\t\tllm_admission\n", 1)
		const n, limit = 200, 4
		s := &slots{finish: make(chan struct{})}
		e := newEngine(t, s.serve)
		g := start(t, narrow(e, limit, ""), site)
		var wg sync.WaitGroup
		var queued atomic.Int64
		for range n {
			wg.Go(func() {
				res, text := g.post(t, "/v1/chat/completions", request)
				if res.StatusCode != http.StatusOK {
					t.Errorf("%s %s", res.Status, text)
				}
				if res.Header.Get("X-Llmgw-Queue-Ms") != "0" {
					queued.Add(1)
				}
			})
		}
		eventually(t, "all wait that do not run", func() bool { return g.waiting(t) == n-limit && s.running.Load() == limit })
		g.reload(t, g.caddyfile(narrow(e, limit, "\t\tadmission {\n\t\t\tqueue_ttl 10m\n\t\t}"), site))
		if w := g.waiting(t); w != n-limit {
			t.Errorf("%d wait after a reload, want %d", w, n-limit)
		}
		g.failReload(t, g.caddyfile(narrow(e, limit, "\t\tdefault_profile nonsense"), site), "nonsense")
		if w := g.waiting(t); w != n-limit {
			t.Errorf("%d wait after a failed reload, want %d", w, n-limit)
		}
		close(s.finish)
		wg.Wait()
		if s.served.Load() != n || s.most.Load() > limit {
			t.Errorf("%d were served, %d at once", s.served.Load(), s.most.Load())
		}
		if queued.Load() < n/2 {
			t.Errorf("%d of %d say that they have waited", queued.Load(), n)
		}
		if r := g.replicas(t)[e.Address]; r.Inflight != 0 || g.waiting(t) != 0 {
			t.Errorf("at rest: %+v, %d wait", r, g.waiting(t))
		}
	})
}

// TestS13_ClientLeavesTheQueue: it is dropped, and no engine hears of it.
func TestS13_ClientLeavesTheQueue(t *testing.T) {
	s := &slots{finish: make(chan struct{})}
	e := newEngine(t, s.serve)
	g := start(t, narrow(e, 1, ""), "\tllm")
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
	eventually(t, "nobody waits", func() bool { return g.waiting(t) == 0 })
	close(s.finish)
	wg.Wait()
	if n := s.served.Load(); n != 1 {
		t.Errorf("%d were served", n)
	}
	eventually(t, "it is counted", func() bool {
		v, _ := g.metric(t, `llmgw_admission_rejected_total{band="silver",reason="client_gone"}`)
		o, _ := g.metric(t, `llmgw_outcomes_total{model="m",outcome="cancelled"}`)
		return v == 1 && o == 1
	})
}

// TestQ03_AnswersOfTheQueue: what does not fit, or has waited too long, gets a
// clear answer with a time to come back, and no replica is blamed.
func TestQ03_AnswersOfTheQueue(t *testing.T) {
	s := &slots{finish: make(chan struct{})}
	e := newEngine(t, s.serve)
	option := narrow(e, 1, "\t\tband tiny {\n\t\t\tpriority 50\n\t\t\tceiling 0.01\n\t\t\tqueue 1\n\t\t}\n\t\tadmission {\n\t\t\tqueue_ttl 2s\n\t\t}")
	g := start(t, option, "\tllm {\n\t\tband {http.request.header.X-Band}\n\t}")
	var wg sync.WaitGroup
	wg.Go(func() { g.post(t, "/v1/chat/completions", request) })
	eventually(t, "one runs", func() bool { return s.running.Load() == 1 })
	check := func(what string, status int, code string, headers ...string) {
		res, text := g.post(t, "/v1/chat/completions", request, headers...)
		if got := isError(t, res, text, status); got != code || res.Header.Get("Retry-After") == "" {
			t.Errorf("%s: %s, Retry-After %q", what, text, res.Header.Get("Retry-After"))
		}
	}
	wg.Go(func() { check("waited too long", http.StatusGatewayTimeout, "queue_timeout", "X-Band", "tiny") })
	eventually(t, "one waits", func() bool { return g.waiting(t) == 1 })
	check("the queue is full", http.StatusServiceUnavailable, "queue_full", "X-Band", "tiny")
	check("its own deadline", http.StatusTooManyRequests, "deadline", "X-Llmgw-Deadline-Ms", "50")
	eventually(t, "nobody waits", func() bool { return g.waiting(t) == 0 })
	close(s.finish)
	wg.Wait()
	if r := g.replicas(t)[e.Address]; r.State != "ready" || r.Reason != "" {
		t.Errorf("the replica is %s: %s", r.State, r.Reason)
	}
}

// TestWaitsAreCountedOnce: a request that full engines refuse, and that has several turns, is
// one that has waited, for all the time.
func TestWaitsAreCountedOnce(t *testing.T) {
	s := &slots{finish: make(chan struct{})}
	refused := atomic.Int64{}
	e := newEngine(t, func(w http.ResponseWriter, r *http.Request) {
		if s.running.Load() > 0 && refused.Add(1) <= 2 {
			w.Header().Set("Retry-After", "0")
			http.Error(w, `{"error":{"message":"full"}}`, http.StatusServiceUnavailable)
			return
		}
		s.serve(w, r)
	})
	g := start(t, "\t\tmodel m {\n\t\t\tendpoint "+e.Address+"\n\t\t}\n", "\tllm")
	var wg sync.WaitGroup
	wg.Go(func() { g.post(t, "/v1/chat/completions", request) })
	eventually(t, "one runs", func() bool { return s.running.Load() == 1 })
	wg.Go(func() {
		if res, text := g.post(t, "/v1/chat/completions", request); res.StatusCode != http.StatusOK {
			t.Errorf("%s %s", res.Status, text)
		}
	})
	eventually(t, "it was refused twice and runs", func() bool { return refused.Load() >= 2 && s.running.Load() == 2 })
	close(s.finish)
	wg.Wait()
	eventually(t, "it is counted", func() bool {
		n, _ := g.metric(t, `llmgw_outcomes_total{model="m",outcome="ok"}`)
		return n == 2
	})
	if n, _ := g.metric(t, `llmgw_admission_wait_seconds_count{band="silver"}`); n != 1 {
		t.Errorf("%v are counted as having waited", n)
	}
}

// TestPriorityScheduling: where the engine schedules by it, a request has the priority
// of its band, whatever the client sent; elsewhere nothing is touched.
func TestPriorityScheduling(t *testing.T) {
	e := newEngine(t, answer)
	model := "\t\tmodel %s {\n\t\t\tendpoint " + e.Address + " {\n\t\t\t\tserved_model m\n\t\t\t\t%s\n\t\t\t}\n\t\t}\n"
	option := "\t\tband platinum {\n\t\t\tengine_priority -10\n\t\t}\n" + fmt.Sprintf(model, "by", "priority_scheduling") + fmt.Sprintf(model, "plain", "weight 1")
	g := start(t, option, "\tllm {\n\t\tband {http.request.header.X-Band}\n\t}")
	const said = `{"model":%q,"priority":-99,"messages":[]}`
	for _, c := range []struct{ model, band, body, want string }{
		{"by", "platinum", said, `{"model":"m","priority":-10,"messages":[]}`},
		{"by", "platinum", `{"model":%q,"messages":[]}`, `{"priority":-10,"model":"m","messages":[]}`},
		{"by", "gold", said, `{"model":"m","priority":-99,"messages":[]}`},
		{"plain", "platinum", said, `{"model":"m","priority":-99,"messages":[]}`},
	} {
		if res, text := g.post(t, "/v1/chat/completions", fmt.Sprintf(c.body, c.model), "X-Band", c.band); res.StatusCode != http.StatusOK {
			t.Fatalf("%s %s", res.Status, text)
		}
		got := e.got()
		if body := got[len(got)-1].Body; body != c.want {
			t.Errorf("%s, %s: the engine got %s, want %s", c.model, c.band, body, c.want)
		}
	}
}

// TestSequencesTakeSlots: choices and lists of prompts take as many as the engine makes
// sequences of them.
func TestSequencesTakeSlots(t *testing.T) {
	for what, wide := range map[string][2]string{
		"choices": {"/v1/chat/completions", `{"model":"m","n":3,"messages":[]}`},
		"prompts": {"/v1/completions", `{"model":"m","prompt":["a","b","c"]}`},
		"inputs":  {"/v1/embeddings", `{"model":"m","input":[[1],[2],[3]]}`},
	} {
		t.Run(what, func(t *testing.T) {
			s := &slots{finish: make(chan struct{})}
			e := newEngine(t, s.serve)
			g := start(t, narrow(e, 4, ""), "\tllm")
			var wg sync.WaitGroup
			wg.Go(func() { g.post(t, wide[0], wide[1]) })
			eventually(t, "the wide one runs", func() bool { return s.running.Load() == 1 })
			for range 2 {
				wg.Go(func() { g.post(t, "/v1/chat/completions", request) })
			}
			eventually(t, "one goes with it, one waits", func() bool { return s.running.Load() == 2 && g.waiting(t) == 1 })
			close(s.finish)
			wg.Wait()
			if n := s.served.Load(); n != 3 || s.most.Load() > 2 {
				t.Errorf("%d were served, %d at once", n, s.most.Load())
			}
		})
	}
}

// TestExplainAdmission: it says what would become of a request, as the request then
// finds out, and the log says what it counted as.
func TestExplainAdmission(t *testing.T) {
	s := &slots{finish: make(chan struct{})}
	e := newEngine(t, s.serve)
	e.setPage(page(0, 0, 0) + `vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1` + "\n")
	g := start(t, narrow(e, 1, ""), "\tllm {\n\t\tband {http.request.header.X-Band}\n\t\ttenant {http.request.header.X-Team}\n\t}")
	explain := func(query, body string) llmgw.Admitted {
		t.Helper()
		var out llmgw.Explanation
		if status := g.admin(t, "/llmgw/explain?"+query, body, &out); status != http.StatusOK {
			t.Fatalf("explain: %d", status)
		}
		return out.Admission
	}
	const large = `{"model":"m","max_tokens":1601,"messages":[]}`
	eventually(t, "the cache is known", func() bool { return explain("", large).Refused == "too_large" })
	res, text := g.post(t, "/v1/chat/completions", large)
	if code := isError(t, res, text, http.StatusBadRequest); code != "context_length_exceeded" || !strings.Contains(text, "1600") {
		t.Errorf("%s", text)
	}
	if a := explain("band=gold", request); a.Band != "gold" || a.Waits != "" || a.Refused != "" {
		t.Errorf("with a free slot: %+v", a)
	}
	var wg sync.WaitGroup
	wg.Go(func() { g.post(t, "/v1/chat/completions", request) })
	eventually(t, "one runs", func() bool { return s.running.Load() == 1 })
	var last *http.Response
	for i := range 3 {
		wg.Go(func() {
			res, _ := g.post(t, "/v1/chat/completions", request, "X-Band", "gold", "X-Team", "a")
			if i == 2 {
				last = res
			}
		})
		eventually(t, "the others wait", func() bool { return g.waiting(t) == i+1 })
	}
	own, others := explain("band=gold&tenant=a", request), explain("band=gold&tenant=b", request)
	if own.Waits != "turn" && own.Waits != "saturated" || own.Ahead != 3 || own.Slots == nil || *own.Slots != 1 || *own.FreeSlots != 0 {
		t.Errorf("behind others: %+v", own)
	}
	if own.TokensAhead <= others.TokensAhead || others.TokensAhead <= 0 {
		t.Errorf("%d tokens before one of the tenant that has three, %d before another's", own.TokensAhead, others.TokensAhead)
	}
	close(s.finish)
	wg.Wait()
	if entry := g.accessLog(t, last.Header.Get("X-Request-Id")); entry["band"] != "gold" || entry["queue_ms"] == nil {
		t.Errorf("the log says band %v, waited %v", entry["band"], entry["queue_ms"])
	}
}

// TestWaitingRequestsGoToNewReplicas: what waits goes to the replicas that its model has by
// then, with another config or since an engine came up, and to none that it has lost.
func TestWaitingRequestsGoToNewReplicas(t *testing.T) {
	const n, limit = 40, 2
	run := func(t *testing.T, more func(t *testing.T, g *gateway, old, young *engine), first func(old, young *engine) string) {
		s, added := &slots{finish: make(chan struct{})}, &slots{finish: make(chan struct{})}
		old, young := newEngine(t, s.serve), newEngine(t, added.serve)
		g := start(t, first(old, young), "\tllm")
		var wg sync.WaitGroup
		ok := atomic.Int64{}
		for range n {
			wg.Go(func() {
				if res, text := g.post(t, "/v1/chat/completions", request); res.StatusCode == http.StatusOK {
					ok.Add(1)
				} else {
					t.Errorf("%s %s", res.Status, text)
				}
			})
		}
		eventually(t, "all wait that do not run", func() bool { return g.waiting(t) == n-limit && s.running.Load() == limit })
		more(t, g, old, young)
		eventually(t, "the new one is in use", func() bool { return added.running.Load() == limit })
		close(added.finish)
		eventually(t, "all but those on the old one are served", func() bool { return ok.Load() == n-limit })
		close(s.finish)
		wg.Wait()
		if s.served.Load() != limit || added.most.Load() > limit {
			t.Errorf("%d were served by the old one, want %d; %d at once by the new one", s.served.Load(), limit, added.most.Load())
		}
		if g.waiting(t) != 0 {
			t.Error("some wait still")
		}
	}
	t.Run("a reload", func(t *testing.T) {
		run(t, func(t *testing.T, g *gateway, _, young *engine) {
			g.reload(t, g.caddyfile(narrow(young, limit, ""), "\tllm"))
		}, func(old, _ *engine) string { return narrow(old, limit, "") })
	})
	t.Run("an engine that comes up", func(t *testing.T) {
		run(t, func(_ *testing.T, _ *gateway, _, young *engine) {
			young.setInstead(nil)
		}, func(old, young *engine) string {
			young.setInstead(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
			option := narrow(old, limit, "")
			i := strings.Index(option, "\t\tmodel m {")
			return option[:i] + fmt.Sprintf("\t\tendpoint %s %s {\n\t\t\tbatch_capacity %d\n\t\t}\n", old.Address, young.Address, limit)
		})
	})
}

// TestWaitingRequestsGoToTheFallback: those that wait when the last replica of their model
// goes are served by the fallback, as those are that come after.
func TestWaitingRequestsGoToTheFallback(t *testing.T) {
	s := &slots{finish: make(chan struct{})}
	first, other := newEngine(t, s.serve), newEngine(t, answer)
	option := narrow(first, 1, "\t\tmodel n {\n\t\t\tendpoint "+other.Address+" {\n\t\t\t\tserved_model m\n\t\t\t}\n\t\t}")
	option = strings.Replace(option, "model m {\n", "model m {\n\t\t\tfallback n\n", 1)
	g := start(t, option, "\tllm")
	var wg sync.WaitGroup
	wg.Go(func() { g.post(t, "/v1/chat/completions", request) })
	eventually(t, "one runs", func() bool { return s.running.Load() == 1 })
	for range 5 {
		wg.Go(func() {
			if res, text := g.post(t, "/v1/chat/completions", request); res.StatusCode != http.StatusOK || res.Header.Get("X-Llmgw-Queue-Ms") == "0" {
				t.Errorf("%s, queued %s ms: %s", res.Status, res.Header.Get("X-Llmgw-Queue-Ms"), text)
			}
		})
	}
	eventually(t, "the others wait", func() bool { return g.waiting(t) == 5 })
	g.admin(t, "/llmgw/replicas/drain", fmt.Sprintf(`{"replica":%q}`, first.Address), nil)
	eventually(t, "they were served", func() bool { return len(other.got()) == 5 && g.waiting(t) == 0 })
	close(s.finish)
	wg.Wait()
}
