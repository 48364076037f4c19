package schedule

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// allPickers are the shipped ones, by their names in config.
var allPickers = map[string]Picker{
	"max_score":   MaxScore{},
	"p2c":         P2C{},
	"softmax":     Softmax{Temperature: 0.2},
	"softmax 0":   Softmax{},
	"round_robin": RoundRobin{},
	"random":      Random{},
}

// shares picks many times with a fixed stream of random numbers and returns
// what part of the picks each replica got.
func shares(p Picker, replicas []*Replica, totals []float64) []float64 {
	const n = 20000
	got := make([]float64, len(totals))
	for i := range uint64(n) {
		got[p.Pick(&Request{Random: mix(i), Sequence: i}, replicas, totals)] += 1.0 / n
	}
	return got
}

// expectShares allows for five standard deviations of 20,000 picks.
func expectShares(t *testing.T, got, want []float64) {
	t.Helper()
	for i := range want {
		if math.Abs(got[i]-want[i]) > 0.018 {
			t.Errorf("shares %.3f, want %.3f", got, want)
			return
		}
	}
}

func TestMaxScore(t *testing.T) {
	for _, c := range []struct {
		name   string
		totals []float64
		want   []float64
	}{
		{
			"one replica",
			values(0.5),
			values(1),
		},
		{
			"always the best",
			values(1, 1.0001, 0.5),
			values(0, 1, 0),
		},
		{
			"ties spread",
			values(1, 2, 2, 0, 2),
			values(0, 1./3, 1./3, 0, 1./3),
		},
		{
			"an idle fleet spreads",
			values(3, 3, 3, 3),
			values(.25, .25, .25, .25),
		},
		{
			"penalties only",
			values(-1, -0.5, -2),
			values(0, 1, 0),
		},
		{
			"a tie at 0 of either sign",
			values(0, math.Copysign(0, -1)),
			values(.5, .5),
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			expectShares(t, shares(MaxScore{}, make([]*Replica, len(c.totals)), c.totals), c.want)
			expectShares(t, shares(Softmax{Temperature: 0}, make([]*Replica, len(c.totals)), c.totals), c.want)
			expectShares(t, shares(Softmax{Temperature: -1}, make([]*Replica, len(c.totals)), c.totals), c.want)
		})
	}
}

func TestP2C(t *testing.T) {
	for _, c := range []struct {
		name     string
		replicas []*Replica
		totals   []float64
		want     []float64
	}{
		{
			"one replica",
			each(known(inflight(9))),
			values(0.1),
			values(1),
		},
		{
			"only one is near the best",
			each(known(), known(inflight(50)), known()),
			values(0.94, 1, 0.5),
			values(0, 1, 0),
		},
		{
			"the edge of the window is inside",
			each(known(), known(inflight(1))),
			values(0.95, 1),
			values(1, 0),
		},
		{
			"of two near ones the one with fewer in flight",
			each(known(inflight(3)), known(inflight(2)), known()),
			values(1, 0.96, 0.2),
			values(0, 1, 0),
		},
		{
			"equals get the same",
			each(known(), known(), known(), known()),
			values(1, 1, 1, 1),
			values(.25, .25, .25, .25),
		},
		{
			// Of 4 the worst loses every draw, the others win by rank:
			// 3/6, 2/6 and 1/6 of the pairs.
			"the busiest of several never wins",
			each(known(inflight(0)), known(inflight(1)), known(inflight(2)), known(inflight(3))),
			values(1, 1, 1, 1),
			values(3./6, 2./6, 1./6, 0),
		},
		{
			"in-flight counts for the weight",
			each(known(inflight(4), weight(4)), known(inflight(2))),
			values(1, 1),
			values(1, 0),
		},
		{
			"a best of 0 has no window around it",
			each(known(inflight(5)), known()),
			values(0, -0.001),
			values(1, 0),
		},
		{
			"a window below 0",
			each(known(inflight(5)), known(), known()),
			values(-1, -1.04, -2),
			values(0, 1, 0),
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			expectShares(t, shares(P2C{}, c.replicas, c.totals), c.want)
		})
	}
}

// A burst of picks whose scores do not change spreads by own counts alone.
func TestP2CSpreadsABurst(t *testing.T) {
	replicas := idle(4)
	totals := values(1, 1, 1, 1)
	for i := range uint64(400) {
		replicas[P2C{}.Pick(&Request{Random: mix(i)}, replicas, totals)].Inflight++
	}
	for i, r := range replicas {
		if r.Inflight < 97 || r.Inflight > 103 {
			t.Errorf("replica %d has %d of 400", i, r.Inflight)
		}
	}
}

func TestSoftmax(t *testing.T) {
	for _, c := range []struct {
		name        string
		temperature float64
		totals      []float64
		want        []float64
	}{
		{
			"one replica",
			0.2,
			values(0.5),
			values(1),
		},
		{
			"one temperature apart is a factor of e",
			0.2,
			values(1, 1.2),
			values(1/(1+math.E), math.E/(1+math.E)),
		},
		{
			"equals get the same",
			0.2,
			values(3, 3, 3),
			values(1./3, 1./3, 1./3),
		},
		{
			"hot is uniform",
			1e9,
			values(0, 1, 2, 3),
			values(.25, .25, .25, .25),
		},
		{
			"cold is argmax",
			1e-9,
			values(0, 3, 2.9),
			values(0, 1, 0),
		},
		{
			"a penalty is as good as never",
			0.2,
			values(-3, 3),
			values(0, 1),
		},
		{
			"far apart does not overflow",
			0.2,
			values(1e6, -1e6, 1e6),
			values(.5, 0, .5),
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := shares(Softmax{Temperature: c.temperature}, make([]*Replica, len(c.totals)), c.totals)
			expectShares(t, got, c.want)
		})
	}
}

// The last of many random numbers must not fall through to a replica that has
// no share at all.
func TestSoftmaxAtTheEnds(t *testing.T) {
	totals := values(-1e6, 0.1, 0.2, 0.3, 0.1, -1e6)
	for _, random := range []uint64{0, 1, math.MaxUint64, math.MaxUint64 - 1, 0xfffffffffffff800} {
		i := Softmax{Temperature: 0.1}.Pick(&Request{Random: random}, make([]*Replica, 6), totals)
		if i == 0 || i == 5 {
			t.Errorf("random %x picked %d, which has no share", random, i)
		}
	}
}

func TestRoundRobin(t *testing.T) {
	replicas := idle(3)
	var got []int
	for sequence := range uint64(7) {
		got = append(got, RoundRobin{}.Pick(&Request{Sequence: sequence, Random: mix(sequence)}, replicas, values(0, 9, 0)))
	}
	if want := []int{0, 1, 2, 0, 1, 2, 0}; !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
	if i := (RoundRobin{}).Pick(&Request{Sequence: math.MaxUint64}, replicas, values(0, 0, 0)); i != 0 {
		t.Errorf("the last sequence number picked %d", i)
	}
}

func TestRandomIgnoresScores(t *testing.T) {
	expectShares(t, shares(Random{}, idle(4), values(-1, 0, 5, 0)), values(.25, .25, .25, .25))
}

// Every picker returns an index of the slice, for any finite totals, and one
// that goes by score never takes a replica that another beats by far.
func TestPickersStayInBounds(t *testing.T) {
	for name, p := range allPickers {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				replicas := anyReplicas(t)
				totals := rapid.SliceOfN(rapid.OneOf(
					rapid.Float64Range(-8, 8),
					rapid.Float64Range(-1e9, 1e9),
					rapid.Just(0.0),
				), len(replicas), len(replicas)).Draw(t, "totals")
				req := &Request{
					Random:   rapid.OneOf(rapid.Uint64(), rapid.Just(uint64(math.MaxUint64))).Draw(t, "random"),
					Sequence: rapid.Uint64().Draw(t, "sequence"),
				}
				i := p.Pick(req, replicas, totals)
				if i < 0 || i >= len(replicas) {
					t.Fatalf("picked %d of %d", i, len(replicas))
				}
				best := slices.Max(totals)
				switch name {
				case "max_score", "softmax 0":
					if totals[i] != best {
						t.Fatalf("picked %v of %v", totals[i], totals)
					}
				case "p2c":
					if totals[i] < best-0.05*math.Abs(best)-1e-9 {
						t.Fatalf("picked %v of %v", totals[i], totals)
					}
				}
			})
		})
	}
}

// Of the two that are drawn the busier never wins, so the busiest of all never
// does while the draw is free.
func TestP2CNeverTakesTheBusiest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		replicas := idle(rapid.IntRange(2, 10).Draw(t, "replicas"))
		busiest := rapid.IntRange(0, len(replicas)-1).Draw(t, "busiest")
		for _, r := range replicas {
			r.Inflight = rapid.IntRange(0, 9).Draw(t, "inflight")
		}
		replicas[busiest].Inflight = 10
		req := &Request{Random: rapid.Uint64().Draw(t, "random")}
		if i := (P2C{}).Pick(req, replicas, make([]float64, len(replicas))); i == busiest {
			t.Fatal("picked the busiest")
		}
	})
}

func TestPickersDoNotAllocate(t *testing.T) {
	replicas := idle(64)
	totals := make([]float64, len(replicas))
	for i := range totals {
		totals[i] = 1 - float64(i%7)/100
	}
	req := &Request{Random: 12345}
	for name, p := range allPickers {
		if n := testing.AllocsPerRun(100, func() { p.Pick(req, replicas, totals) }); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

func BenchmarkPickers64(b *testing.B) {
	replicas := idle(64)
	totals := make([]float64, len(replicas))
	for i := range totals {
		totals[i] = 1 - float64(i%7)/100
	}
	req := &Request{}
	for name, p := range allPickers {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				req.Random = mix(req.Random)
				req.Sequence++
				p.Pick(req, replicas, totals)
			}
		})
	}
}
