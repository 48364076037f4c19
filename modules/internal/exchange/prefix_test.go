package exchange

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/internal/fleet"
	"github.com/llmgw/llmgw/modules/internal/prefix"
	"github.com/llmgw/llmgw/modules/internal/tenant"
	"github.com/llmgw/llmgw/modules/schedule"
)

// remembering is a world whose model remembers which prompts went where, as it does by default.
func remembering(t testing.TB, addresses ...string) *world {
	w := newWorld(t, addresses...)
	m := *w.Catalog.Resolve("m")
	m.Prefix = catalog.Prefix{Tree: true, Rules: schedule.PrefixRules{Threshold: 0.3, BalanceAbs: 16, BalanceRel: 1.5}}
	w.serve(t, nil, &m)
	w.Prefix = prefix.New(16 << 20)
	return w
}

// words is text that nothing else begins like.
func words(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = "abcdefghijklmnop  "[rand.IntN(18)]
	}
	return string(b)
}

// chatOf is a request for a model, with these messages by turns.
func chatOf(model string, messages ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `{"model":%q,"max_tokens":50,"messages":[`, model)
	for i, text := range messages {
		role := []string{"system", "user", "assistant"}[min(i, 1+(i+1)%2)]
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"role":%q,"content":%q}`, role, text)
	}
	return b.String() + "]}"
}

// goes sends a request and returns where it went and why, without ending it.
func (w *world) goes(t testing.TB, body string) (*Exchange, string, schedule.CacheDecision) {
	t.Helper()
	x := w.ask(t, body)
	return x, mustPick(t, x).Replica.ID, x.CacheDecision()
}

func expectCache(t testing.TB, what, at, want string, got, decision schedule.CacheDecision) {
	t.Helper()
	if at != want || got != decision {
		t.Errorf("%s: it goes to %s, %s; want %s, %s", what, at, got, want, decision)
	}
}

// TestGoesWhereItsBeginningIs: each turn of a conversation goes to the replica of the turns before,
// under any name of its model; what begins in another way goes by load.
func TestGoesWhereItsBeginningIs(t *testing.T) {
	w := remembering(t, fourReplicas...)
	for range 20 {
		talk := []string{words(300), words(200)}
		first, home, why := w.goes(t, chatOf("m", talk...))
		if why != schedule.CacheMiss {
			t.Errorf("a new prompt: %s", why)
		}
		first.End()
		for turn := range 4 {
			talk = append(talk, words(100), words(200))
			x, at, why := w.goes(t, chatOf([]string{"m", "alias"}[turn%2], talk...))
			expectCache(t, "the next turn", at, home, why, schedule.CacheHit)
			if m := x.Matched(); !(m > 0.4 && m < 1) {
				t.Errorf("it is taken to hold %v", m)
			}
			x.End()
		}
	}
	w.atRest(t)
}

// TestWithoutMemory: a model that has it off, or a request without a prompt to remember, goes by load.
func TestWithoutMemory(t *testing.T) {
	w := remembering(t, fourReplicas...)
	w.Catalog.Resolve("m").Prefix.Tree = false
	for range 2 {
		x, _, why := w.goes(t, chatOf("m", words(300)))
		if why != schedule.CacheNoTree || x.Matched().Known() {
			t.Errorf("%s, matched %v", why, x.Matched())
		}
		x.End()
	}
	w.Catalog.Resolve("m").Prefix.Tree = true
	r := newRequest(`{"model":"m","input":"` + words(300) + `"}`)
	r.URL.Path = "/v1/embeddings"
	x := Open(w.Runtime, r, FindRoute("/v1/embeddings", nil))
	x.Anonymous = true
	if err := x.Read(r); err != nil || x.Resolve() != nil {
		t.Fatal(err)
	}
	if mustPick(t, x); x.CacheDecision() != schedule.CacheNoTree {
		t.Errorf("embeddings: %s", x.CacheDecision())
	}
	x.End()
	for _, r := range w.fleet.Replicas() {
		r.SetDraining(true)
	}
	x = w.ask(t, chatBody)
	if e := x.Pick(); e != nil || x.CacheDecision() != schedule.CacheNoWorker {
		t.Errorf("without a replica: %v, %s", e, x.CacheDecision())
	}
	x.End()
	w.atRest(t)
}

// TestR05_MissGoesByLoad: a prompt that nobody knows goes where the load is least, whatever is
// remembered of the replicas.
func TestR05_MissGoesByLoad(t *testing.T) {
	w := remembering(t, "gpu1:8000", "gpu2:8000")
	busy, idle := w.fleet.Find("gpu1:8000"), w.fleet.Find("gpu2:8000")
	for range 200 { // all of it on the one that is idle now
		busy.SetDraining(true)
		x, _, _ := w.goes(t, chatOf("m", words(2000)))
		x.End()
	}
	busy.SetDraining(false)
	busy.SetStats(&fleet.Stats{At: time.Now().Add(time.Hour), Waiting: 8, Running: 16, KVUsage: 0.8})
	idle.SetStats(&fleet.Stats{At: time.Now().Add(time.Hour), Waiting: 0, Running: 0, KVUsage: 0})
	count := map[string]int{}
	var all []*Exchange
	for range 50 {
		x, at, why := w.goes(t, chatOf("m", words(500)))
		if why != schedule.CacheMiss {
			t.Fatalf("%s", why)
		}
		all = append(all, x)
		count[at]++
		if idle.Inflight() >= 8 { // the loads have met
			break
		}
	}
	if count["gpu1:8000"] > 1 {
		t.Errorf("they went to %v", count)
	}
	for _, x := range all {
		x.End()
	}
	w.atRest(t)
}

// TestR06_HotPrefixSpreads: of a beginning that all share no replica gets more than it can run while
// another has room, the others soon hold it too, and most still find it.
func TestR06_HotPrefixSpreads(t *testing.T) {
	const slots = 16
	w := remembering(t, fourReplicas...)
	for _, e := range w.Catalog.Resolve("m").Endpoints {
		e.Slots = slots
		e.Replica.SetStats(&fleet.Stats{At: time.Now().Add(time.Hour), Waiting: 0, Running: 0, KVUsage: 0.1})
	}
	for range 2 { // groups
		system := words(32_000) // 8,000 tokens
		hits, misses := 0, 0
		var all []*Exchange
		for i := range 200 {
			x, _, why := w.goes(t, chatOf("m", system, words(200)))
			if all = append(all, x); why == schedule.CacheHit {
				hits++
			} else {
				misses++
			}
			lo, hi := slots, 0
			for _, r := range w.fleet.Replicas() {
				lo, hi = min(lo, r.Inflight()), max(hi, r.Inflight())
			}
			if hi > slots && lo < slots {
				t.Fatalf("after %d one has %d, another %d of %d", i, hi, lo, slots)
			}
			if len(all) > 3*slots {
				all[0].End()
				all = all[1:]
			}
		}
		if hits < 190 || misses < 3 {
			t.Errorf("%d found it, %d did not", hits, misses)
		}
		for _, x := range all {
			x.End()
		}
	}
	w.atRest(t)
}

// TestR06_HotPrefixIsWhereItIsNeeded: without any crowd, what all requests begin with is soon on all replicas,
// and what an eighth of them begin with on one or two of four.
func TestR06_HotPrefixIsWhereItIsNeeded(t *testing.T) {
	for groups, misses := range map[int][2]int{1: {4, 4}, 8: {8, 14}} {
		w := remembering(t, fourReplicas...)
		systems := make([]string, groups)
		for i := range systems {
			systems[i] = words(8_000)
		}
		served, missed := make(map[string]int), 0
		for i := range 400 {
			x, at, why := w.goes(t, chatOf("m", systems[i%groups], words(200)))
			if x.End(); why != schedule.CacheHit {
				missed++
			}
			served[at]++
		}
		least := 400
		for _, e := range w.Catalog.Resolve("m").Endpoints {
			least = min(least, served[e.Replica.ID])
		}
		if missed < misses[0] || missed > misses[1] || groups == 1 && least < 60 {
			t.Errorf("%d groups: %d of 400 did not find it, want %v; served %v", groups, missed, misses, served)
		}
		w.atRest(t)
	}
}

// TestShortPromptsSpread: prompts of which nothing is remembered go to all, however much more one replica
// holds of others.
func TestShortPromptsSpread(t *testing.T) {
	w := remembering(t, "gpu1:8000", "gpu2:8000")
	x, home, _ := w.goes(t, chatOf("m", words(3000), words(200)))
	x.End()
	seen := make(map[string]int)
	for range 100 {
		x, at, why := w.goes(t, chatOf("m", "hi"))
		seen[at]++
		if x.End(); why != schedule.CacheMiss {
			t.Errorf("it goes to %s: %s", at, why)
		}
	}
	if seen[home] < 20 || seen[home] > 80 {
		t.Errorf("of 100 short ones %v, %s holds more", seen, home)
	}
	w.atRest(t)
}

// TestSharedAtMost: prompts part somewhere in the block after what is known to be shared.
func TestSharedAtMost(t *testing.T) {
	var b beginning
	b.chain.Reset(1)
	b.chain.Add([]byte(strings.Repeat("x", 3*64+10)))
	for shared, want := range map[int]int{0: 0, 64: 128, 128: 192, 192: 202} {
		b.common = shared
		if b.boundary(); b.atMost != want || b.popular.Bytes != shared {
			t.Errorf("%d bytes are shared: at least %d, at most %d, want %d", shared, b.popular.Bytes, b.atMost, want)
		}
	}
}

// TestImbalanceOverrides: where load is far from equal it alone counts, though the holder has room.
func TestImbalanceOverrides(t *testing.T) {
	w := remembering(t, "gpu1:8000", "gpu2:8000")
	talk := []string{words(300), words(200)}
	x, home, _ := w.goes(t, chatOf("m", talk...))
	x.End()
	r := w.fleet.Find(home)
	var slots []fleet.Slot
	for n := range 40 {
		x, at, why := w.goes(t, chatOf("m", talk...))
		x.End()
		switch {
		case n <= 16 && (at != home || why != schedule.CacheHit):
			t.Errorf("with %d there: it goes to %s, %s", n, at, why)
		case n == 17 && (at == home || why != schedule.CacheOverride):
			t.Errorf("with %d there: it goes to %s, %s", n, at, why)
		case n > 17 && (at == home || why != schedule.CacheHit): // the other has it by now
			t.Errorf("with %d there: it goes to %s, %s", n, at, why)
		}
		s, _ := r.Take(-1, 100)
		slots = append(slots, s)
	}
	for i := range slots {
		slots[i].Release()
	}
	w.atRest(t)
}

// TestR18_RestartedReplicaHoldsNothing: what a replica held is forgotten when it has restarted, as
// soon as it says that it has started anew, or when it comes back from being down.
func TestR18_RestartedReplicaHoldsNothing(t *testing.T) {
	w := remembering(t, "gpu1:8000", "gpu2:8000")
	stats := func(r *fleet.Replica, prompted, started float64) {
		r.SetStats(&fleet.Stats{
			At: time.Now(), Waiting: 0, Running: 0, KVUsage: 0.1,
			Prompted: schedule.Gauge(prompted), Started: schedule.Gauge(started),
		})
	}
	for name, restart := range map[string]func(r *fleet.Replica){
		"start": func(r *fleet.Replica) { stats(r, 6000, 2000) },
		"down":  func(r *fleet.Replica) { r.Restarted() },
	} {
		talk := []string{words(3000), words(200)}
		x, home, _ := w.goes(t, chatOf("m", talk...))
		x.End()
		r := w.fleet.Find(home)
		stats(r, 5000, 1000)
		stats(r, 5500, 1000)
		x, at, why := w.goes(t, chatOf("m", talk...))
		expectCache(t, name+": before", at, home, why, schedule.CacheHit)
		x.End()
		restart(r)
		x, _, why = w.goes(t, chatOf("m", talk...))
		if why != schedule.CacheMiss || x.Matched() != 0 {
			t.Errorf("%s: a restarted replica is credited: %s, %v", name, why, x.Matched())
		}
		x.End()
		r.Restarted() // for the next one
	}
	w.atRest(t)
}

// TestGoneReplicaIsForgotten: one that is gone leaves nothing behind.
func TestGoneReplicaIsForgotten(t *testing.T) {
	f := fleet.New(nil)
	x := prefix.New(1 << 20)
	f.Gone = func(r *fleet.Replica) { x.Forget(r.Serial) }
	u, err := fleet.ParseURL("gpu1:8000")
	if err != nil {
		t.Fatal(err)
	}
	r, release := f.Hold(u)
	var c prefix.Chain
	c.Reset(x.Seed())
	c.Add([]byte(words(1000)))
	x.Insert(&c, keyOf(r), 0)
	held := make([]prefix.Held, 1)
	if x.Match(&c, []prefix.Key{keyOf(r)}, held); held[0].Matched == 0 {
		t.Fatal("it is not remembered")
	}
	release()
	if x.Match(&c, []prefix.Key{keyOf(r)}, held); held[0].Matched != 0 {
		t.Error("it is remembered still")
	}
}

// TestT16_TenantsAreSeparate: with isolation no tenant's prompt is a hit for another, here or in the
// engine, whatever cache_salt clients send; without it they share.
func TestT16_TenantsAreSeparate(t *testing.T) {
	a, b := &tenant.Key{Name: "a"}, &tenant.Key{Name: "b"}
	for _, isolation := range []bool{false, true} {
		w := remembering(t, "gpu1:8000", "gpu2:8000")
		w.Catalog.Resolve("m").Prefix.Isolation = isolation
		content := words(2000)
		send := func(key *tenant.Key, team, salt string) (salts string, hit bool) {
			body := chatOf("m", content)
			if salt != "" {
				body = `{"cache_salt":"` + salt + `",` + body[1:]
			}
			r := newRequest(body)
			x := Open(w.Runtime, r, FindRoute(chatPath, nil))
			x.Key, x.Anonymous = key, key == nil
			if err := x.Read(r); err != nil || x.Resolve() != nil || x.Admit(t.Context(), Class{Tenant: team}) != nil {
				t.Fatal(err)
			}
			mustPick(t, x)
			defer x.End()
			out := newRequest("")
			if !x.Direct(out) {
				t.Fatal(x.Err())
			}
			if _, rest, ok := strings.Cut(sent(t, out), `"cache_salt":"`); ok {
				salts, _, _ = strings.Cut(rest, `"`)
			}
			return salts, x.CacheDecision() == schedule.CacheHit
		}
		first, _ := send(a, "", "")
		if again, hit := send(a, "", ""); !hit || again != first {
			t.Errorf("isolation %v: a tenant's own prompt: hit %v, salts %q and %q", isolation, hit, first, again)
		}
		for name, other := range map[string]func() (string, bool){
			"another key":         func() (string, bool) { return send(b, "", "") },
			"with its salt":       func() (string, bool) { return send(b, "", first+"x") },
			"another team of it":  func() (string, bool) { return send(a, "team", "") },
			"nobody, its tenant":  func() (string, bool) { return send(nil, "a", "") },
			"a salt of its own":   func() (string, bool) { return send(a, "", "mine") },
			"a salt of its own 2": func() (string, bool) { return send(a, "", "mine2") },
		} {
			salt, hit := other()
			if isolation && (hit || salt == first || salt == "") {
				t.Errorf("%s: hit %v, salts %q and %q", name, hit, first, salt)
			}
		}
		if !isolation && first != "" {
			t.Errorf("a salt is set without isolation: %q", first)
		}
		w.atRest(t)
	}
}
