package fleet

import (
	"net/url"
	"testing"
	"time"

	"github.com/llmgw/llmgw/modules/schedule"
)

// The estimate follows what the gateway sends and gets back between two scrapes.
func TestLoadMovesOnFromTheScrape(t *testing.T) {
	c := newClock()
	r := hold(t, c)
	if l := r.Load(c.now(), 0); l.State != schedule.Ready || l.Total != 0 || l.Queued != 0 || l.Free.Known() || l.Slots.Known() || l.Tokens.Known() {
		t.Errorf("nothing is known: %+v", l)
	}
	slots := take(t, r, 6)
	// Two of the twelve are others'.
	r.SetStats(&Stats{At: c.now(), Waiting: 4, Running: 4, KVUsage: 0.5, BlockSize: 16, Blocks: 100})
	expect := func(what string, queued float64, free schedule.Gauge, tokens float64) {
		t.Helper()
		if l := r.Load(c.now(), 0); l.Queued != queued || l.Free != free || l.Slots != 4 || float64(l.FreeTokens) != tokens || l.Tokens != 1600 {
			t.Errorf("%s: %+v, want %v queued, %v free, %v tokens", what, l, queued, free, tokens)
		}
	}
	expect("as scraped", 4, 0, 797) // half of the 6 tokens wait, too
	slots = append(slots, take(t, r, 1)...)
	expect("one more", 5, 0, 796)
	if !r.Reserve(r.Load(c.now(), 0).Turn, 1, 100) {
		t.Fatal("nothing was reserved in between")
	}
	expect("and one that may come", 6, 0, 696)
	r.Unreserve(1, 100)
	for _, s := range slots {
		s.Release()
	}
	// Two of another gateway's are left: 6 were this one's.
	expect("all but others' have ended", 0, 2, 1600-803.0/4)
	c.advance(StatsMaxAge + 1)
	if l := r.Load(c.now(), 0); l.Queued != 0 || l.Free != 4 || l.FreeTokens.Known() || l.KVUsage.Known() || l.Total != 0 {
		t.Errorf("too old: %+v", l)
	}
}

// Requests that wait for memory say nothing of how many could run.
func TestCapacityIsNotLearntFromAFullCache(t *testing.T) {
	c := newClock()
	r := hold(t, c)
	r.SetStats(&Stats{At: c.now(), Waiting: 4, Running: 2, KVUsage: 0.97})
	if l := r.Load(c.now(), 0); l.Slots.Known() || l.Queued != 4 {
		t.Errorf("%+v", l)
	}
	take(t, r, 3)
	if l := r.Load(c.now(), 0); l.Queued != 7 {
		t.Errorf("after three more: %+v", l)
	}
}

func TestDeclaredSlots(t *testing.T) {
	c := newClock()
	r := hold(t, c)
	r.SetStats(&Stats{At: c.now(), Waiting: 2, Running: 7, KVUsage: 0.1})
	take(t, r, 5)
	if l := r.Load(c.now(), 3); l.Slots != 3 || l.Queued != 11 || l.Free != 0 {
		t.Errorf("declared: %+v", l)
	}
	if l := r.Load(c.now(), 0); l.Slots != 7 {
		t.Errorf("learnt: %+v", l)
	}
}

// TestFailedScrapeKeepsTheBaseline: values that are stored again are moved on from
// when they were new.
func TestFailedScrapeKeepsTheBaseline(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	r := newReplica(&url.URL{Scheme: "http", Host: "gpu1:8000"}, func() time.Time { return now })
	stats := Stats{At: now, Waiting: 4, Running: 4, KVUsage: 0, BlockSize: 10, Blocks: 1000}
	r.SetStats(&stats)
	var slots []Slot
	for range 4 {
		s, _ := r.Take(-1, 1000)
		slots = append(slots, s)
	}
	before := r.Load(now, 4)
	again := *r.Stats()
	again.Failed = "timeout"
	r.SetStats(&again)
	if after := r.Load(now, 4); after.Total != before.Total || after.FreeTokens != before.FreeTokens || after.Total != 12 || after.FreeTokens != 6000 {
		t.Errorf("%+v, before the failure %+v", after, before)
	}
	for _, s := range slots {
		s.Release()
	}
}

// TestTokensInUse: those that wait in the engine have no tokens in its cache yet, and
// those that end free what they had there.
func TestTokensInUse(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	r := newReplica(&url.URL{Scheme: "http", Host: "gpu1:8000"}, func() time.Time { return now })
	var slots []Slot
	for range 4 {
		s, _ := r.Take(-1, 1000)
		slots = append(slots, s)
	}
	r.SetStats(&Stats{At: now, Waiting: 2, Running: 2, KVUsage: 0.1, BlockSize: 10, Blocks: 1000})
	free := func() float64 { return float64(r.Load(now, 0).FreeTokens) }
	if got := free(); got != 10_000-1000-2000 {
		t.Errorf("%v are free with two that run and two that wait", got)
	}
	if !r.Reserve(r.Load(now, 0).Turn, 1, 500) {
		t.Fatal("nothing was reserved in between")
	}
	if got := free(); got != 10_000-1000-2000-500 {
		t.Errorf("%v are free with 500 promised", got)
	}
	r.Unreserve(1, 500)
	for _, s := range slots {
		s.Release()
	}
	if got := free(); got != 10_000 {
		t.Errorf("%v are free when all have ended", got)
	}
}

// TestWhatWaitsIsSeen: an engine in which requests wait is full, however many it is said
// or known to run: they wait for another reason then.
func TestWhatWaitsIsSeen(t *testing.T) {
	c := newClock()
	r := hold(t, c)
	r.SetStats(&Stats{At: c.now(), Waiting: 30, Running: 20, KVUsage: 0.6})
	if l := r.Load(c.now(), 256); l.Queued != 30 || l.Free != 0 || l.Slots != 256 {
		t.Errorf("30 wait: %+v", l)
	}
	if l := r.Load(c.now(), 256).Plus(-35); l.Queued != 0 || l.Free != 5 {
		t.Errorf("35 have ended: %+v", l)
	}
	r.SetStats(&Stats{At: c.now(), Waiting: 1, Running: 20, KVUsage: 0.6})
	if l := r.Load(c.now(), 256); l.Queued != 0 || l.Free != 235 {
		t.Errorf("one waits for the next step: %+v", l)
	}
}

// TestPromptsThatAreReadTakeNoSlots: what waits while an engine reads others' prompts, step by step,
// waits neither for a slot nor for memory: it runs as many as it ran before.
func TestPromptsThatAreReadTakeNoSlots(t *testing.T) {
	c := newClock()
	r := hold(t, c)
	for _, step := range []struct {
		waiting, running, usage, queued, free schedule.Gauge
	}{
		{0, 30, 0.5, 0, 226},
		{4, 5, 0.3, 0, 21},                   // it has run 30
		{4, 5, 0.95, 4, 0},                   // memory is what it lacks
		{4, 5, schedule.Unknown, 4, 0},       // or may be
		{6, 40, 0.5, 6, 0},                   // as many as never before
		{0, 5, 0.95, 0, schedule.Gauge(251)}, // nothing waits
	} {
		r.SetStats(&Stats{At: c.now(), Waiting: step.waiting, Running: step.running, KVUsage: step.usage})
		if l := r.Load(c.now(), 256); l.Queued != float64(step.queued) || l.Free != step.free {
			t.Errorf("%+v: %v queued, %v free", step, l.Queued, l.Free)
		}
	}
}

// TestCapacityIsNotLearntFromSlowReaders: answers that clients have still to take are no
// longer run.
func TestCapacityIsNotLearntFromSlowReaders(t *testing.T) {
	c := newClock()
	r := hold(t, c)
	for range 100 {
		slot, _ := r.Take(-1, 1)
		slot.Alive()
		defer slot.Release()
	}
	r.SetStats(&Stats{At: c.now(), Waiting: 20, Running: 8, KVUsage: 0.5})
	if l := r.Load(c.now(), 0); l.Slots != 8 {
		t.Errorf("it runs 8, and %v are learnt", l.Slots)
	}
}

// TestR07_TokensOfAPageThatLags: what it cannot have seen yet is not in its KV usage.
func TestR07_TokensOfAPageThatLags(t *testing.T) {
	c := newClock()
	r := hold(t, c)
	for range 10 {
		slot, _ := r.Take(-1, 1000)
		defer slot.Release()
	}
	for _, said := range []struct{ running, kv, free schedule.Gauge }{{0, 0, 6000}, {4, 0.25, 6000}, {10, 0.5, 8000}} {
		r.SetStats(&Stats{At: c.now(), Waiting: 0, Running: said.running, KVUsage: said.kv, BlockSize: 16, Blocks: 1000})
		if l := r.Load(c.now(), 0); l.FreeTokens != said.free {
			t.Errorf("10 of 1,000 tokens each, and the page says %v run: %v are free, want %v", said.running, l.FreeTokens, said.free)
		}
	}
}

// TestWhatWaitedForAStepRuns: requests that waited when the page was written, and whose answers have begun since, are
// no queue: the engine runs them beside the others, until the next page at least.
func TestWhatWaitedForAStepRuns(t *testing.T) {
	c := newClock()
	r := hold(t, c)
	var all []Slot
	for range 6 {
		s, _ := r.Take(-1, 1)
		all = append(all, s)
	}
	for i := range 4 {
		all[i].Alive()
	}
	check := func(when string, queued, free float64) {
		t.Helper()
		if l := r.Load(c.now(), 16); l.Queued != queued || float64(l.Free) != free {
			t.Errorf("%s: %v queued, %v free", when, l.Queued, l.Free)
		}
	}
	r.SetStats(&Stats{At: c.now(), Waiting: 2, Running: 4, KVUsage: 0.1})
	check("two wait", 2, 0)
	for i := range 2 {
		all[4+i].Alive()
	}
	check("six answer", 0, 0)
	for i := range all {
		all[i].Release()
	}
	check("none is left of six that answered", 0, 6)
	r.SetStats(&Stats{At: c.now(), Waiting: 3, Running: 5, KVUsage: 0.95})
	check("others' wait for memory", 3, 0)
}
