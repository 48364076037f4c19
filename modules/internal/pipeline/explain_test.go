package pipeline

import (
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/llmgw/llmgw/modules/schedule"
)

func TestExplain(t *testing.T) {
	p := chat()
	d := decide(t, p,
		replica("a", "one", waiting(1)),
		replica("b", "one", state(schedule.Down)),
		replica("c", "two", priority(1)),
		replica("d", "one", waiting(1), stale, func(r *schedule.Replica) { r.KVUsage = 0.95 }),
	)
	e := d.Explain(p)
	if e.Profile != "chat" || e.Picker != "p2c" || e.Pool != "one" || e.Pick != "a" || e.Spilled {
		t.Errorf("explanation %+v", e)
	}
	if want := (0.25 + 0.95/0.9) / 2; !(math.Abs(e.Saturation-want) < 1e-9) {
		t.Errorf("saturation %v, want %v", e.Saturation, want)
	}
	want := []Verdict{
		{
			Replica: "a", Pool: "one", Total: 2.75,
			Scores: []Score{{"session", 0, 3}, {"queue", 0.75, 1}, {"kv", 1, 1}, {"inflight", 1, 1}},
		},
		{Replica: "b", Pool: "one", Rejected: "down"},
		{Replica: "c", Pool: "two", Rejected: "other_pool"},
		{
			// 0.75 + 1, less the penalty of a full cache, less a quarter of 6.
			Replica: "d", Pool: "one", Total: 0.75 - 1 + 1 - 1.5,
			Scores: []Score{{"session", 0, 3}, {"queue", 0.75, 1}, {"kv", -1, 1}, {"inflight", 1, 1}},
		},
	}
	for i, v := range e.Candidates {
		if v.Replica != want[i].Replica || v.Pool != want[i].Pool || v.Rejected != want[i].Rejected ||
			!(math.Abs(v.Total-want[i].Total) < 1e-9) || !slices.Equal(v.Scores, want[i].Scores) {
			t.Errorf("verdict %+v, want %+v", v, want[i])
		}
	}
}

func TestExplainWithoutAPick(t *testing.T) {
	p := chat()
	d := decide(t, p, replica("a", "one", tried), replica("b", "two", state(schedule.Cooling)))
	e := d.Explain(p)
	if e.Pick != "" || e.Pool != "" || len(e.Candidates) != 2 {
		t.Fatalf("explanation %+v", e)
	}
	for i, want := range []string{"tried", "cooling"} {
		if v := e.Candidates[i]; v.Rejected != want || len(v.Scores) != 0 || v.Total != 0 {
			t.Errorf("verdict %+v, want it rejected as %s and without a score", v, want)
		}
	}
}

// A decision that found nothing must not be explained by the scores of the one
// before it.
func TestExplainAfterAnEarlierDecision(t *testing.T) {
	p := chat()
	d := decide(t, p, replica("a", "one"), replica("b", "one"))
	for i := range d.Candidates {
		d.Candidates[i].State = schedule.Down
	}
	if d.Decide(p, request()) {
		t.Fatal("picked a replica that is down")
	}
	for _, v := range d.Explain(p).Candidates {
		if v.Rejected != "down" || v.Scores != nil {
			t.Errorf("verdict %+v", v)
		}
	}
}

// wild is a plugin that does not keep to the contract.
type wild []float64

func (w wild) Score(_ *schedule.Request, _ []*schedule.Replica, scores []float64) {
	copy(scores, w)
}

// Other people's scorers divide 0 by 0. What they say is brought into bounds,
// and the decision goes on.
func TestScorerOutOfBounds(t *testing.T) {
	for _, picker := range []schedule.Picker{
		schedule.MaxScore{}, schedule.P2C{}, schedule.Softmax{Temperature: 0.2}, schedule.RoundRobin{}, schedule.Random{},
	} {
		p := &Profile{
			Scorers: []WeightedScorer{{"wild", 2, wild{math.NaN(), math.Inf(1), math.Inf(-1), 7, -0.5}}},
			Picker:  picker,
		}
		d := decide(t, p, replica("a", "one"), replica("b", "one"), replica("c", "one"), replica("d", "one"), replica("e", "one"))
		var got []float64
		for _, v := range d.Explain(p).Candidates {
			got = append(got, v.Scores[0].Value)
		}
		if want := []float64{0, 1, -1, 1, -0.5}; !slices.Equal(got, want) {
			t.Errorf("%T: values %v, want %v", picker, got, want)
		}
	}
}

// For any fleet and any of the profiles: the pick is eligible, every candidate
// has either a reason or scores, and the explanation says what was decided.
func TestDecisionProperties(t *testing.T) {
	profiles := []*Profile{chat(), best(), best(NamedFilter{"only", only("r1")})}
	pickers := []schedule.Picker{
		schedule.MaxScore{}, schedule.P2C{}, schedule.Softmax{Temperature: 0.2}, schedule.RoundRobin{}, schedule.Random{},
	}
	rapid.Check(t, func(t *rapid.T) {
		p := *rapid.SampledFrom(profiles).Draw(t, "profile")
		p.Picker = rapid.SampledFrom(pickers).Draw(t, "picker")
		d := NewDecision()
		defer d.Free()
		// Twice on one decision, with other sizes, as one that is reused has it.
		for range 2 {
			d.Candidates = append(d.Candidates[:0], anyCandidates(t)...)
			req := request()
			req.Random, req.Sequence = rapid.Uint64().Draw(t, "random"), rapid.Uint64().Draw(t, "sequence")
			req.Session, req.HasSession = rapid.Uint64().Draw(t, "session"), rapid.Bool().Draw(t, "has session")
			checkDecision(t, d, &p, req)
		}
	})
}

func checkDecision(t *rapid.T, d *Decision, p *Profile, req *schedule.Request) {
	found := d.Decide(p, req)
	eligible := func(r *schedule.Replica) bool {
		if r.State != schedule.Ready || r.Tried {
			return false
		}
		for _, f := range p.Filters {
			if f.Filter.Filter(req, r) != "" {
				return false
			}
		}
		return true
	}
	exists := false
	for i := range d.Candidates {
		exists = exists || eligible(&d.Candidates[i])
	}
	if found != exists {
		t.Fatalf("found a replica: %v; there is one: %v", found, exists)
	}
	e := d.Explain(p)
	if len(e.Candidates) != len(d.Candidates) || len(d.Rejected) != len(d.Candidates) {
		t.Fatalf("%d candidates, %d verdicts, %d reasons", len(d.Candidates), len(e.Candidates), len(d.Rejected))
	}
	for i, v := range e.Candidates {
		r := &d.Candidates[i]
		scored := v.Rejected == ""
		if scored && !(found && eligible(r)) || !scored && found && eligible(r) && r.Pool == d.Pool {
			t.Fatalf("candidate %d is wrongly dropped or not: %+v", i, v)
		}
		if scored != (v.Rejected == "") || scored != (len(v.Scores) > 0) {
			t.Fatalf("candidate %d (scored: %v): %+v", i, scored, v)
		}
		if sum := weighted(v.Scores); scored && !r.Stale && !(math.Abs(v.Total-sum) < 1e-9) {
			t.Fatalf("candidate %d: total %v of %+v", i, v.Total, v.Scores)
		}
	}
	if !found {
		if d.Pick != -1 || e.Pick != "" {
			t.Fatalf("pick %d, %q of none", d.Pick, e.Pick)
		}
		return
	}
	pick := &d.Candidates[d.Pick]
	if !eligible(pick) || pick.Pool != d.Pool || e.Pick != pick.ID || d.Rejected[d.Pick] != "" {
		t.Fatalf("pick %+v of pool %q, explained as %q, rejected as %q", *pick, d.Pool, e.Pick, d.Rejected[d.Pick])
	}
	if !(d.Saturation >= 0) {
		t.Fatalf("saturation %v", d.Saturation)
	}
	checkPool(t, d, req, eligible)
}

// checkPool compares the pool with what the documentation says, computed the
// slow way.
func checkPool(t *rapid.T, d *Decision, req *schedule.Request, eligible func(*schedule.Replica) bool) {
	type pool struct{ priority, sum, n float64 }
	pools := make(map[string]pool)
	for i := range d.Candidates {
		r := &d.Candidates[i]
		if !eligible(r) {
			continue
		}
		p, seen := pools[r.Pool]
		if !seen || float64(r.Priority) > p.priority {
			p.priority = float64(r.Priority)
		}
		p.sum += schedule.Saturation(req, r)
		p.n++
		pools[r.Pool] = p
	}
	chosen := pools[d.Pool]
	mean := chosen.sum / chosen.n
	higher := false
	for name, p := range pools {
		saturation := p.sum / p.n
		higher = higher || p.priority > chosen.priority
		switch {
		case saturation < 1 && mean >= 1:
			t.Fatalf("pool %q at %v although %q is at %v", d.Pool, mean, name, saturation)
		case saturation < 1 && p.priority > chosen.priority:
			t.Fatalf("pool %q of %v although %q has %v", d.Pool, chosen.priority, name, p.priority)
		case mean >= 1 && saturation < mean:
			t.Fatalf("all are saturated, and pool %q at %v is more so than %q at %v", d.Pool, mean, name, saturation)
		}
	}
	for i := range d.Candidates {
		r := &d.Candidates[i]
		if !eligible(r) || r.Pool == d.Pool {
			continue
		}
		// Of other pools those take part that have the same priority and room.
		p := pools[r.Pool]
		takesPart := mean < 1 && p.sum/p.n < 1 && p.priority == chosen.priority
		if takesPart != (d.Rejected[i] == "") {
			t.Fatalf("pool %q takes part: %v, candidate %d is dropped for %q", r.Pool, takesPart, i, d.Rejected[i])
		}
	}
	if d.Spilled != higher {
		t.Fatalf("spilled: %v, a pool of higher priority: %v", d.Spilled, higher)
	}
}

func weighted(scores []Score) (sum float64) {
	for _, s := range scores {
		sum += s.Value * s.Weight
	}
	return sum
}

// anyCandidates draws up to 20 replicas in up to four pools, each pool with one
// priority, named r0, r1, ...
func anyCandidates(t *rapid.T) []schedule.Replica {
	gauge := rapid.OneOf(rapid.Just(math.NaN()), rapid.Just(0.0), rapid.Float64Range(0, 1), rapid.Float64Range(0, 20))
	priorities := rapid.SliceOfN(rapid.IntRange(-2, 2), 4, 4).Draw(t, "priorities")
	list := make([]schedule.Replica, rapid.IntRange(0, 20).Draw(t, "size"))
	for i := range list {
		pool := rapid.IntRange(0, 3).Draw(t, "pool")
		list[i] = schedule.Replica{
			ID: "r" + strings.Repeat("1", i), Hash: rapid.Uint64().Draw(t, "hash"),
			Pool: "pool-" + string(rune('a'+pool)), Priority: priorities[pool],
			Weight:        rapid.Float64Range(0.01, 100).Draw(t, "weight"),
			State:         rapid.SampledFrom([]schedule.State{schedule.Ready, schedule.Ready, schedule.Draining, schedule.Down, schedule.Cooling}).Draw(t, "state"),
			Tried:         rapid.IntRange(0, 5).Draw(t, "tried") == 0,
			Stale:         rapid.Bool().Draw(t, "stale"),
			Waiting:       schedule.Gauge(gauge.Draw(t, "waiting")),
			Running:       schedule.Gauge(gauge.Draw(t, "running")),
			KVUsage:       schedule.Gauge(gauge.Draw(t, "kv")),
			BatchCapacity: schedule.Gauge(gauge.Draw(t, "batch")),
			DrainRate:     schedule.Gauge(gauge.Draw(t, "drain")),
			Inflight:      rapid.IntRange(0, 100).Draw(t, "inflight"),
			PendingTokens: rapid.Int64Range(0, 1e6).Draw(t, "pending"),
		}
	}
	return list
}
