package pipeline

import (
	"testing"

	"github.com/llmgw/llmgw/modules/schedule"
)

// A replica whose last scrape failed stays, but any fresh one of like load is
// better; alone it is still taken.
func TestStalePenalty(t *testing.T) {
	for _, c := range []struct {
		name       string
		candidates []schedule.Replica
		pick       string
	}{
		{
			"a fresh one of like load wins",
			[]schedule.Replica{replica("a", "one", stale), replica("b", "one")},
			"b",
		},
		{
			"a fresh one that is a little busier wins",
			[]schedule.Replica{replica("a", "one", stale), replica("b", "one", waiting(0.9))},
			"b",
		},
		{
			"a fresh one that is far busier loses",
			[]schedule.Replica{replica("a", "one", stale), replica("b", "one", waiting(3.5))},
			"a",
		},
		{
			"a stale one alone is taken",
			[]schedule.Replica{replica("a", "one", stale, waiting(4))},
			"a",
		},
		{
			"of two stale ones the idle one",
			[]schedule.Replica{replica("a", "one", stale, waiting(2)), replica("b", "one", stale)},
			"b",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if d := decide(t, best(), c.candidates...); picked(d) != c.pick {
				t.Errorf("picked %q, want %q", picked(d), c.pick)
			}
		})
	}
}

// The penalty grows with the profile's weights: a profile that counts in
// hundreds must not drown it.
func TestStalePenaltyScalesWithTheWeights(t *testing.T) {
	p := best()
	p.Scorers[0].Weight = 1000
	if d := decide(t, p, replica("a", "one", stale), replica("b", "one", waiting(0.9))); picked(d) != "b" {
		t.Errorf("picked the stale %q", picked(d))
	}
}

// R08 in the whole: of three otherwise equal replicas the one without a KV
// metric is not what requests go to.
func TestR08_ReplicaWithoutKVMetricIsNotPreferred(t *testing.T) {
	kv := func(v schedule.Gauge) func(*schedule.Replica) { return func(r *schedule.Replica) { r.KVUsage = v } }
	counts := make(map[string]int)
	for i := range uint64(600) {
		d := NewDecision()
		d.Candidates = append(d.Candidates, replica("old names", "one", kv(0.2)), replica("none", "one", kv(unknown)), replica("new names", "one", kv(0.2)))
		req := request()
		req.Random = i * 0x9e3779b97f4a7c15
		d.Decide(chat(), req)
		counts[picked(d)]++
		d.Free()
	}
	if fair := 600 / 3; counts["none"] > fair+60 {
		t.Errorf("%v: the one of which least is known gets the most", counts)
	}
	d := decide(t, chat(), replica("old names", "one", kv(0.2)), replica("none", "one", kv(unknown)), replica("new names", "one", kv(0.6)))
	if picked(d) != "old names" {
		t.Errorf("picked %q, want the one with the most room that is known of", picked(d))
	}
}

// R07: with the engines' own numbers frozen at 0, own counts carry the
// decision.
func TestR07_FrozenScrapesStillSpread(t *testing.T) {
	candidates := []schedule.Replica{replica("a", "one"), replica("b", "one"), replica("c", "one"), replica("d", "one")}
	for i := range uint64(100) {
		d := NewDecision()
		d.Candidates = append(d.Candidates, candidates...)
		req := request()
		req.Random = i * 0x9e3779b97f4a7c15
		d.Decide(chat(), req)
		candidates[d.Pick].Inflight++
		d.Free()
	}
	for _, c := range candidates {
		if c.Inflight < 22 || c.Inflight > 28 {
			t.Errorf("%s has %d of 100 requests", c.ID, c.Inflight)
		}
	}
}
