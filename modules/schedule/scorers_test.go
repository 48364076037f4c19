package schedule

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

// allScorers are the shipped ones, by their names in config.
var allScorers = map[string]Scorer{
	"queue":         Queue{},
	"kv":            KV{},
	"load":          Load{},
	"pending":       Pending{},
	"inflight":      Inflight{},
	"pool-priority": PoolPriority{},
	"session":       Session{},
	"prefix":        Prefix{},
	"cost":          Cost{},
	"lora":          LoRA{},
}

// score runs a scorer over replicas, into a slice full of leftovers.
func score(s Scorer, req *Request, replicas ...*Replica) []float64 {
	scores := make([]float64, len(replicas))
	for i := range scores {
		scores[i] = -99
	}
	s.Score(req, replicas, scores)
	return scores
}

func expect(t *testing.T, got []float64, want ...float64) {
	t.Helper()
	for i := range want {
		if !near(got[i], want[i]) {
			t.Errorf("scores %v, want %v", got, want)
			return
		}
	}
}

func waiting(v Gauge) func(*Replica)  { return func(r *Replica) { r.Waiting = v } }
func running(v Gauge) func(*Replica)  { return func(r *Replica) { r.Running = v } }
func kv(v Gauge) func(*Replica)       { return func(r *Replica) { r.KVUsage = v } }
func drains(v Gauge) func(*Replica)   { return func(r *Replica) { r.DrainRate = v } }
func weight(v float64) func(*Replica) { return func(r *Replica) { r.Weight = v } }
func inflight(v int) func(*Replica)   { return func(r *Replica) { r.Inflight = v } }
func pending(v int64) func(*Replica)  { return func(r *Replica) { r.PendingTokens = v } }
func prefill(v int64) func(*Replica)  { return func(r *Replica) { r.PrefillTokens = v } }
func priority(v int) func(*Replica)   { return func(r *Replica) { r.Priority = v } }
func hash(v uint64) func(*Replica)    { return func(r *Replica) { r.Hash = v } }
func each(rs ...*Replica) []*Replica  { return rs }
func values(vs ...float64) []float64  { return vs }

func TestScorers(t *testing.T) {
	for _, c := range []struct {
		name     string
		scorer   Scorer
		replicas []*Replica
		want     []float64
	}{
		{
			"queue: falls with what waits, and no further than 0",
			Queue{},
			each(known(waiting(0)), known(waiting(1)), known(waiting(4)), known(waiting(400))),
			values(1, 0.75, 0, 0),
		},
		{
			"queue: a replica of twice the weight may hold twice as many",
			Queue{},
			each(known(waiting(2)), known(waiting(2), weight(2)), known(waiting(2), weight(0.5))),
			values(0.5, 0.75, 0),
		},
		{
			"queue: unknown is as bad as the worst known",
			Queue{},
			each(known(waiting(1)), known(waiting(nan)), known(waiting(3))),
			values(0.75, 0.25, 0.25),
		},
		{
			"queue: all unknown is neutral",
			Queue{},
			each(known(waiting(nan)), known(waiting(nan))),
			values(0.5, 0.5),
		},
		{
			"kv: what is free",
			KV{},
			each(known(kv(0)), known(kv(0.25)), known(kv(0.9))),
			values(1, 0.75, 0.1),
		},
		{
			"kv: a penalty above the ceiling, whatever the weight",
			KV{},
			each(known(kv(0.91)), known(kv(1), weight(100)), known(kv(0.5))),
			values(Penalty, Penalty, 0.5),
		},
		{
			"kv: unknown gets no penalty for what is known of others",
			KV{},
			each(known(kv(0.95)), known(kv(nan)), known(kv(0.5))),
			values(Penalty, 0, 0.5),
		},
		{
			"kv: unknown among full ones",
			KV{},
			each(known(kv(0.95)), known(kv(nan))),
			values(Penalty, 0),
		},
		{
			"kv: all unknown is neutral",
			KV{},
			each(known(kv(nan)), known(kv(nan)), known(kv(nan))),
			values(0.5, 0.5, 0.5),
		},
		{
			"load: the time that a replica needs for what it runs",
			Load{},
			each(known(running(8), drains(4)), known(running(8), drains(1)), known(running(0), drains(1))),
			values(0.75, 0, 1),
		},
		{
			"load: a slow replica with as much to do is found",
			Load{},
			each(known(running(10), drains(10)), known(running(10), drains(10)), known(running(10), drains(2))),
			values(0.8, 0.8, 0),
		},
		{
			"load: weight divides",
			Load{},
			each(known(running(8), drains(1), weight(4)), known(running(8), drains(1))),
			values(0.75, 0),
		},
		{
			"load: own in-flight stands in for an unknown running",
			Load{},
			each(known(running(nan), drains(1), inflight(2)), known(running(8), drains(1))),
			values(0.75, 0),
		},
		{
			"load: idle is idle, also without a drain rate",
			Load{},
			each(known(running(0), drains(nan)), known(running(8), drains(1))),
			values(1, 0),
		},
		{
			"load: busy without a single completion is as bad as the worst",
			Load{},
			each(known(running(8), drains(nan)), known(running(8), drains(4)), known(running(8), drains(1))),
			values(0, 0.75, 0),
		},
		{
			"load: nobody completed anything yet",
			Load{},
			each(known(running(8), drains(nan)), known(running(1), drains(nan))),
			values(0.5, 0.5),
		},
		{
			"load: a drain rate of nothing is the worst there is",
			Load{},
			each(known(running(8), drains(0)), known(running(8), drains(0.1))),
			values(0, 1),
		},
		{
			"pending: requests are not equal units",
			Pending{},
			each(known(pending(1000)), known(pending(250)), known(pending(0))),
			values(0, 0.75, 1),
		},
		{
			"pending: weight divides",
			Pending{},
			each(known(pending(1000), weight(2)), known(pending(1000))),
			values(0.5, 0),
		},
		{
			"pending: nothing anywhere",
			Pending{},
			each(known(), known()),
			values(1, 1),
		},
		{
			"inflight: relative to the most loaded",
			Inflight{},
			each(known(inflight(4)), known(inflight(1)), known(inflight(0))),
			values(0, 0.75, 1),
		},
		{
			"inflight: weight divides",
			Inflight{},
			each(known(inflight(4), weight(4)), known(inflight(4), weight(0.5))),
			values(0.875, 0),
		},
		{
			"inflight: alone and busy",
			Inflight{},
			each(known(inflight(9))),
			values(0),
		},
		{
			"inflight: an idle fleet",
			Inflight{},
			each(known(), known(), known()),
			values(1, 1, 1),
		},
		{
			"pool-priority: between the lowest and the highest",
			PoolPriority{},
			each(known(priority(100)), known(priority(50)), known(priority(0))),
			values(1, 0.5, 0),
		},
		{
			"pool-priority: negative ones",
			PoolPriority{},
			each(known(priority(-10)), known(priority(-30)), known(priority(-20))),
			values(1, 0, 0.5),
		},
		{
			"pool-priority: all equal",
			PoolPriority{},
			each(known(priority(7)), known(priority(7))),
			values(1, 1),
		},
		{
			"pool-priority: as far apart as numbers go",
			PoolPriority{},
			each(known(priority(math.MinInt)), known(priority(math.MaxInt)), known(priority(0))),
			values(0, 1, 0.5),
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			expect(t, score(c.scorer, request(), c.replicas...), c.want...)
		})
	}
}

func TestScorersFollowTheRequestsThresholds(t *testing.T) {
	req := request()
	req.TargetWaiting, req.KVCeiling = 8, 0.5
	expect(t, score(Queue{}, req, known(waiting(4))), 0.5)
	expect(t, score(KV{}, req, known(kv(0.5)), known(kv(0.51))), 0.5, Penalty)
}

// A replica whose engine has renamed its KV metric must not look like an empty
// one.
func TestR08_UnknownKVIsNotPreferred(t *testing.T) {
	old, renamed, both := known(kv(0.3)), known(kv(nan)), known(kv(0.6))
	got := score(KV{}, request(), old, renamed, both)
	expect(t, got, 0.7, 0.4, 0.4)
	// Whatever is added that says the same of all three, it never wins.
	for random := range uint64(200) {
		if i := (MaxScore{}).Pick(&Request{Random: random}, nil, got); i != 0 {
			t.Fatalf("replica %d was picked, want the emptiest that is known to be", i)
		}
	}
}

// Whatever the fleet, a replica without a value gets no better score than any
// replica with one.
func TestR08_UnknownIsNeverPreferred(t *testing.T) {
	blind := map[string]func(*Replica){
		"queue": waiting(nan),
		"kv":    kv(nan),
		"load":  func(r *Replica) { r.Running, r.DrainRate = 1, nan },
	}
	for name, hide := range blind {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				replicas := anyReplicas(t)
				hidden := known(hide, weight(rapid.Float64Range(0.01, 100).Draw(t, "weight of the hidden")))
				scores := score(allScorers[name], request(), append(replicas, hidden)...)
				last := scores[len(scores)-1]
				for i, s := range scores[:len(replicas)] {
					if s < last && s != Penalty {
						t.Fatalf("the unknown got %v, %+v only %v", last, *replicas[i], s)
					}
				}
			})
		})
	}
}

func TestScoresAreAlwaysInBounds(t *testing.T) {
	for name, s := range allScorers {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				replicas := anyReplicas(t)
				req := &Request{
					Session:       rapid.Uint64().Draw(t, "session"),
					HasSession:    rapid.Bool().Draw(t, "has session"),
					SessionLoad:   rapid.Float64Range(1, 100).Draw(t, "session load"),
					TargetWaiting: rapid.Float64Range(0.01, 1e6).Draw(t, "target"),
					KVCeiling:     rapid.Float64Range(0.01, 1).Draw(t, "ceiling"),
				}
				for i, v := range score(s, req, replicas...) {
					if !(v >= 0 && v <= 1) && v != Penalty {
						t.Fatalf("%v for %+v", v, *replicas[i])
					}
				}
			})
		})
	}
}

// Scorers run on every request and for every replica.
func TestScorersDoNotAllocate(t *testing.T) {
	replicas := make([]*Replica, 64)
	for i := range replicas {
		replicas[i] = known(inflight(i), kv(0.5), running(3), hash(uint64(i)))
	}
	replicas[7].KVUsage = nan
	req, scores := request(), make([]float64, len(replicas))
	req.HasSession = true
	for name, s := range allScorers {
		if n := testing.AllocsPerRun(100, func() { s.Score(req, replicas, scores) }); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

func BenchmarkScorers64(b *testing.B) {
	replicas := make([]*Replica, 64)
	for i := range replicas {
		replicas[i] = known(inflight(i), kv(0.5), running(3), drains(2), hash(mix(uint64(i))))
	}
	req, scores := request(), make([]float64, len(replicas))
	req.HasSession = true
	for name, s := range allScorers {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				s.Score(req, replicas, scores)
			}
		})
	}
}
