package integration

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/llmgw/llmgw/modules/llmgw"
)

const request = `{"model":"m","messages":[{"role":"user","content":"x"}]}`

// page is a vLLM metrics page with these values.
func page(waiting, running int, kv float64) string {
	return fmt.Sprintf("vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} %d\nvllm:num_requests_running{engine=\"0\",model_name=\"m\"} %d\nvllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m\"} %g\n", waiting, running, kv)
}

// replicas returns the admin API's list, by replica.
func (g *gateway) replicas(t *testing.T) map[string]llmgw.ReplicaStatus {
	t.Helper()
	var list []llmgw.ReplicaStatus
	if status := g.admin(t, "/llmgw/replicas", "", &list); status != http.StatusOK {
		t.Fatalf("replicas: %d", status)
	}
	byID := make(map[string]llmgw.ReplicaStatus)
	for _, r := range list {
		byID[r.Replica] = r
	}
	return byID
}

// known waits until a replica's metrics have been read.
func (g *gateway) known(t *testing.T, engines ...*engine) {
	t.Helper()
	eventually(t, "the replicas' metrics are read", func() bool {
		list := g.replicas(t)
		for _, e := range engines {
			if list[e.Address].Metrics != "ok" {
				return false
			}
		}
		return true
	})
}

// spread sends n requests at once and returns how many each engine got.
func spread(t *testing.T, g *gateway, n int, engines ...*engine) []int {
	t.Helper()
	before := make([]int, len(engines))
	for i, e := range engines {
		before[i] = len(e.got())
	}
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			if res, text := g.post(t, "/v1/chat/completions", request); res.StatusCode != http.StatusOK {
				t.Errorf("%s %s", res.Status, text)
			}
		})
	}
	wg.Wait()
	counts := make([]int, len(engines))
	for i, e := range engines {
		counts[i] = len(e.got()) - before[i]
	}
	return counts
}

func TestR03_TheCountRisesAtThePick(t *testing.T) {
	var mu sync.Mutex
	waiting := 0
	gate := make(chan struct{})
	slow := func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		if waiting++; waiting == 40 {
			close(gate) // no answer begins before all forty are there
		}
		mu.Unlock()
		<-gate
		answer(w, r)
	}
	engines := []*engine{newEngine(t, slow), newEngine(t, slow), newEngine(t, slow), newEngine(t, slow)}
	g := start(t, one(engines...), "\tllm")
	for i, n := range spread(t, g, 40, engines...) {
		if n < 8 || n > 12 {
			t.Errorf("replica %d got %d of 40", i, n)
		}
	}
	for id, r := range g.replicas(t) {
		if r.Inflight != 0 || r.PendingTokens != 0 {
			t.Errorf("%s at rest: %d in flight, %d tokens pending", id, r.Inflight, r.PendingTokens)
		}
	}
}

func TestR07_FrozenMetricsDoNotDecide(t *testing.T) {
	var mu sync.Mutex
	waiting := 0
	gate := make(chan struct{})
	slow := func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		if waiting++; waiting == 100 {
			close(gate)
		}
		mu.Unlock()
		<-gate
		answer(w, r)
	}
	engines := []*engine{newEngine(t, slow), newEngine(t, slow), newEngine(t, slow), newEngine(t, slow)}
	for _, e := range engines {
		e.setPage(page(0, 0, 0)) // and it stays like that
	}
	g := start(t, one(engines...), "\tllm")
	g.known(t, engines...)
	for i, n := range spread(t, g, 100, engines...) {
		if n < 20 || n > 30 {
			t.Errorf("replica %d got %d of 100", i, n)
		}
	}
}

func TestR08_AReplicaWithoutKVMetricIsNotPreferred(t *testing.T) {
	newNames, oldNames, none := newEngine(t, answer), newEngine(t, answer), newEngine(t, answer)
	newNames.setPage(page(0, 1, 0.2))
	oldNames.setPage(strings.Replace(page(0, 1, 0.2), "kv_cache", "gpu_cache", 1))
	none.setPage(strings.Split(page(0, 1, 0), "vllm:kv_cache")[0])
	g := start(t, one(newNames, oldNames, none), "\tllm")
	g.known(t, newNames, oldNames, none)
	list := g.replicas(t)
	for _, e := range []*engine{newNames, oldNames} {
		if kv := list[e.Address].KVUsage; kv == nil || *kv != 0.2 {
			t.Errorf("KV usage %v, want 0.2", kv)
		}
	}
	if r := list[none.Address]; r.KVUsage != nil || len(r.Missing) != 1 || r.Missing[0] != "kv_usage" {
		t.Errorf("without the metric: %v, missing %v", r.KVUsage, r.Missing)
	}
	// It counts as the fullest of the others, not as an empty one.
	none.setPage(strings.Split(page(0, 1, 0), "vllm:kv_cache")[0])
	newNames.setPage(page(0, 1, 0.1))
	eventually(t, "the emptiest is picked", func() bool {
		var e llmgw.Explanation
		g.admin(t, "/llmgw/explain", `{"model":"m"}`, &e)
		return e.Pick == newNames.Address
	})
}

func TestR09_DataParallelRanks(t *testing.T) {
	e := newEngine(t, answer)
	e.setPage(page(12, 31, 0.97) + strings.ReplaceAll(page(0, 0, 0.01), `engine="0"`, `engine="1"`) +
		strings.ReplaceAll(page(99, 99, 1), `model_name="m"`, `model_name="other"`))
	g := start(t, one(e), "\tllm")
	g.known(t, e)
	r := g.replicas(t)[e.Address]
	if *r.Waiting != 12 || *r.Running != 31 || *r.KVUsage != 0.97 {
		t.Errorf("waiting %v, running %v, KV %v", *r.Waiting, *r.Running, *r.KVUsage)
	}
}

func TestR10_RedirectsAndMissingPages(t *testing.T) {
	other, moved, away, without := newEngine(t, answer), newEngine(t, answer), newEngine(t, answer), newEngine(t, answer)
	moved.setInstead(redirecting("/metrics/"))
	away.setInstead(redirecting(other.URL + "/metrics"))
	g := start(t, fmt.Sprintf("\t\tmodel m {\n\t\t\tendpoint %s %s %s {\n\t\t\t\tapi_key engine-secret\n\t\t\t}\n\t\t}",
		moved.Address, away.Address, without.Address), "\tllm")
	eventually(t, "all three are told apart", func() bool {
		list := g.replicas(t)
		return list[moved.Address].Metrics == "ok" && list[away.Address].Metrics == "stale" && list[without.Address].Metrics == "none"
	})
	if n := len(other.all()); n != 0 {
		t.Errorf("the redirect to another host was followed %d times", n)
	}
	if counts := spread(t, g, 6, without); counts[0] == 0 {
		t.Error("the replica without metrics got nothing")
	}
}

// redirecting answers /metrics with a redirect, and its target with a page.
func redirecting(target string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/metrics":
			http.Redirect(w, r, target, http.StatusTemporaryRedirect)
		case target:
			io.WriteString(w, page(1, 2, 0.5))
		default:
			answer(w, r)
		}
	}
}

func TestC03_OwnCountsAreExact(t *testing.T) {
	gate := make(chan struct{})
	slow := func(w http.ResponseWriter, r *http.Request) {
		<-gate
		answer(w, r)
	}
	a, b := newEngine(t, slow), newEngine(t, slow)
	g := start(t, one(a, b), "\tllm")
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() { g.post(t, "/v1/chat/completions", request) })
	}
	eventually(t, "twenty requests are counted while they run", func() bool {
		list := g.replicas(t)
		return list[a.Address].Inflight+list[b.Address].Inflight == 20
	})
	if v, _ := g.metric(t, fmt.Sprintf(`llmgw_endpoint_inflight{replica=%q}`, a.Address)); v < 8 || v > 12 {
		t.Errorf("the metric says %v", v)
	}
	close(gate)
	wg.Wait()
	for id, r := range g.replicas(t) {
		if r.Inflight != 0 {
			t.Errorf("%s: %d in flight at rest", id, r.Inflight)
		}
	}
	// A failure is remembered: the dead replica gets one request at most.
	a.Close()
	for range 10 {
		if res, text := g.post(t, "/v1/chat/completions", request); res.StatusCode != http.StatusOK {
			t.Fatalf("%s %s", res.Status, text)
		}
	}
	eventually(t, "the replica is known to be down", func() bool { return g.replicas(t)[a.Address].State == "down" })
}

func TestTheLoadFollowsTheMetrics(t *testing.T) {
	busy, idle := newEngine(t, answer), newEngine(t, answer)
	busy.setPage(page(3, 4, 0.8))
	idle.setPage(page(0, 1, 0.1))
	g := start(t, one(busy, idle), "\tllm")
	g.known(t, busy, idle)
	if counts := spread(t, g, 20, busy, idle); counts[0] > 2 {
		t.Errorf("the busy replica got %d of 20", counts[0])
	}
	busy.setPage(page(0, 1, 0.1))
	idle.setPage(page(3, 4, 0.8))
	eventually(t, "the other one is picked", func() bool {
		var e llmgw.Explanation
		g.admin(t, "/llmgw/explain", `{"model":"m"}`, &e)
		return e.Pick == busy.Address
	})
}

func TestPoolsSpillOver(t *testing.T) {
	first, second := newEngine(t, answer), newEngine(t, answer)
	first.setPage(page(0, 1, 0.1))
	second.setPage(page(0, 1, 0.1))
	g := start(t, fmt.Sprintf("\t\tmodel m {\n\t\t\tendpoint %s {\n\t\t\t\tpool fast\n\t\t\t\tpriority 200\n\t\t\t}\n\t\t\tendpoint %s {\n\t\t\t\tpool spare\n\t\t\t}\n\t\t}",
		first.Address, second.Address), "\tllm")
	g.known(t, first, second)
	for range 10 {
		res, _ := g.post(t, "/v1/chat/completions", request)
		if got := res.Header.Get("X-Llmgw-Pool"); got != "fast" {
			t.Fatalf("pool %q", got)
		}
	}
	first.setPage(page(4, 8, 0.5))
	eventually(t, "the pool is seen to be saturated", func() bool {
		res, _ := g.post(t, "/v1/chat/completions", request)
		return res.Header.Get("X-Llmgw-Pool") == "spare"
	})
}

func TestSessionsStay(t *testing.T) {
	engines := []*engine{newEngine(t, answer), newEngine(t, answer), newEngine(t, answer)}
	g := start(t, one(engines...), "\tllm")
	seen := make(map[string]bool)
	for s := range 12 {
		var at string
		for range 5 {
			res, _ := g.post(t, "/v1/chat/completions", request, "X-Session-Id", fmt.Sprint("session-", s))
			got := res.Header.Get("X-Llmgw-Replica")
			if at != "" && got != at {
				t.Errorf("session %d moved from %s to %s", s, at, got)
			}
			at = got
		}
		seen[at] = true
	}
	if len(seen) < 2 {
		t.Error("all sessions are on one replica")
	}
}

func TestDrainAndUndrain(t *testing.T) {
	a, b := newEngine(t, answer), newEngine(t, answer)
	g := start(t, one(a, b), "\tllm")
	if status := g.admin(t, "/llmgw/replicas/drain", fmt.Sprintf(`{"replica":%q}`, a.Address), nil); status != http.StatusOK {
		t.Fatalf("drain: %d", status)
	}
	if counts := spread(t, g, 10, a, b); counts[0] != 0 || counts[1] != 10 {
		t.Errorf("draining: %v", counts)
	}
	g.admin(t, "/llmgw/replicas/drain", fmt.Sprintf(`{"replica":%q}`, b.Address), nil)
	res, text := g.post(t, "/v1/chat/completions", request)
	if code := isError(t, res, text, http.StatusServiceUnavailable); code != "no_replica_available" || res.Header.Get("Retry-After") != "5" {
		t.Errorf("code %q, Retry-After %q", code, res.Header.Get("Retry-After"))
	}
	if !strings.Contains(text, "2 draining") {
		t.Errorf("the error does not say why: %s", text)
	}
	g.admin(t, "/llmgw/replicas/undrain", fmt.Sprintf(`{"replica":%q}`, a.Address), nil)
	if counts := spread(t, g, 4, a, b); counts[0] != 4 {
		t.Errorf("undrained: %v", counts)
	}
}

func TestModelsAreLearnedAndLearnedAgain(t *testing.T) {
	e := newEngine(t, answer)
	g := start(t, "\t\tendpoint "+e.Address, "\tllm")
	models := func() string {
		res, err := http.Get(g.URL + "/v1/models")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		return readAll(t, res.Body)
	}
	eventually(t, "the model is learned", func() bool { return strings.Contains(models(), `"id":"m"`) })
	if res, text := g.post(t, "/v1/chat/completions", request); res.StatusCode != http.StatusOK {
		t.Fatalf("%s %s", res.Status, text)
	}
	res, text := g.post(t, "/v1/chat/completions", `{"model":"n"}`)
	if code := isError(t, res, text, http.StatusNotFound); code != "model_not_found" {
		t.Errorf("code %q", code)
	}
	// The engine goes away and comes back at the same address with another model.
	e.Close()
	g.post(t, "/v1/chat/completions", request)
	eventually(t, "it is down", func() bool { return g.replicas(t)[e.Address].State == "down" })
	back := newEngineAt(t, e.Address, answer)
	back.mu.Lock()
	back.models = []string{"n"}
	back.mu.Unlock()
	begin := time.Now()
	eventually(t, "the other model is learned", func() bool {
		list := models()
		return strings.Contains(list, `"id":"n"`) && !strings.Contains(list, `"id":"m"`)
	})
	t.Logf("learned %v after its return", time.Since(begin).Round(time.Millisecond))
	if res, text := g.post(t, "/v1/chat/completions", `{"model":"n"}`); res.StatusCode != http.StatusOK {
		t.Errorf("%s %s", res.Status, text)
	}
}
