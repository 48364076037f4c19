package schedule

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// nan is an unknown value, for tables.
var nan = Unknown

// known returns a replica of weight 1 about whose load everything is known and
// nothing is going on.
func known(change ...func(*Replica)) *Replica {
	r := &Replica{Weight: 1, DrainRate: Unknown, BatchCapacity: Unknown, Cached: Unknown}
	for _, f := range change {
		f(r)
	}
	return r
}

// request has the defaults of the gateway's config.
func request() *Request {
	return &Request{TargetWaiting: 4, KVCeiling: 0.9, SessionLoad: 1.25}
}

func TestGaugeUnknownIsNeverZero(t *testing.T) {
	if Unknown.Known() {
		t.Error("Unknown is known")
	}
	if got := Unknown.Or(7); got != 7 {
		t.Errorf("Unknown.Or(7) = %v", got)
	}
	zero := Gauge(0)
	if !zero.Known() {
		t.Error("0 is not known")
	}
	if got := zero.Or(7); got != 0 {
		t.Errorf("Gauge(0).Or(7) = %v", got)
	}
}

func TestStateString(t *testing.T) {
	for state, want := range map[State]string{
		Ready:    "ready",
		Draining: "draining",
		Down:     "down",
		Cooling:  "cooling",
		99:       "unknown",
	} {
		if got := state.String(); got != want {
			t.Errorf("State(%d) = %q, want %q", state, got, want)
		}
	}
}

func TestSaturation(t *testing.T) {
	for _, c := range []struct {
		name    string
		replica Replica
		want    float64
	}{
		{
			"idle",
			Replica{Weight: 1, BatchCapacity: nan},
			0,
		},
		{
			"half the target waits",
			Replica{Weight: 1, Waiting: 2, BatchCapacity: nan},
			0.5,
		},
		{
			"the target waits",
			Replica{Weight: 1, Waiting: 4, BatchCapacity: nan},
			1,
		},
		{
			"three times the target waits",
			Replica{Weight: 1, Waiting: 12, BatchCapacity: nan},
			3,
		},
		{
			"twice the weight, half the saturation",
			Replica{Weight: 2, Waiting: 4, BatchCapacity: nan},
			0.5,
		},
		{
			"cache at its ceiling",
			Replica{Weight: 1, KVUsage: 0.9, BatchCapacity: nan},
			1,
		},
		{
			"the fuller of queue and cache counts: cache",
			Replica{Weight: 1, Waiting: 1, KVUsage: 0.45, BatchCapacity: nan},
			0.5,
		},
		{
			"the fuller of queue and cache counts: queue",
			Replica{Weight: 1, Waiting: 3, KVUsage: 0.45, BatchCapacity: nan},
			0.75,
		},
		{
			"weight does not enlarge a cache",
			Replica{Weight: 4, KVUsage: 0.9, BatchCapacity: nan},
			1,
		},
		{
			"nothing known",
			Replica{Weight: 1, Waiting: nan, Running: nan, KVUsage: nan, BatchCapacity: nan, Inflight: 100},
			0,
		},
		{
			"own in-flight above the batch is surely queued",
			Replica{Weight: 1, Waiting: nan, KVUsage: nan, BatchCapacity: 8, Inflight: 10},
			0.5,
		},
		{
			"own in-flight below the batch says nothing",
			Replica{Weight: 1, Waiting: nan, KVUsage: nan, BatchCapacity: 8, Inflight: 7},
			0,
		},
		{
			"a scrape that lags behind own counts",
			Replica{Weight: 1, Waiting: 0, BatchCapacity: 8, Inflight: 16},
			2,
		},
		{
			"an engine that others queue at, too",
			Replica{Weight: 1, Waiting: 6, BatchCapacity: 8, Inflight: 10},
			1.5,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Saturation(request(), &c.replica); !near(got, c.want) {
				t.Errorf("saturation %v, want %v", got, c.want)
			}
		})
	}
}

func TestAggregate(t *testing.T) {
	ten := []float64{9, 0, 1, 2, 3, 4, 5, 6, 7, 8}
	for _, c := range []struct {
		of   []float64
		p90  bool
		want float64
	}{
		{nil, false, 0},
		{nil, true, 0},
		{[]float64{3}, true, 3},
		{[]float64{1, 2}, true, 2},
		{[]float64{1, 2}, false, 1.5},
		{ten, false, 4.5},
		{ten, true, 8},
		{append(ten, 10), true, 9},
	} {
		if got := Aggregate(slices.Clone(c.of), c.p90); !near(got, c.want) {
			t.Errorf("%v, p90 %v: %v, want %v", c.of, c.p90, got, c.want)
		}
	}
}

// Saturation is what bands and pools are compared by, so it must be a number
// for whatever an engine says, and never fall when more waits.
func TestSaturationProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		req, r := request(), anyReplica(t)
		s := Saturation(req, r)
		if !(s >= 0) {
			t.Fatalf("saturation %v of %+v", s, *r)
		}
		more := *r
		more.Inflight++
		if after := Saturation(req, &more); after < s {
			t.Fatalf("one more in flight lowered it from %v to %v", s, after)
		}
		if r.Waiting.Known() {
			more.Waiting = r.Waiting + 1
			if after := Saturation(req, &more); after < s {
				t.Fatalf("one more waiting lowered it from %v to %v", s, after)
			}
		}
	})
}

// near compares floats that took different ways to the same value.
func near(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

// anyGauge draws a value that an engine may come up with: unknown, nothing,
// ordinary, absurd.
func anyGauge(t *rapid.T, label string) Gauge {
	return Gauge(rapid.OneOf(
		rapid.Just(math.NaN()),
		rapid.Just(0.0),
		rapid.Float64Range(0, 1),
		rapid.Float64Range(0, 1000),
		rapid.Just(math.MaxFloat64),
		rapid.Just(math.Inf(1)),
	).Draw(t, label))
}

// anyReplica draws a replica with any values that its fields may have.
func anyReplica(t *rapid.T) *Replica {
	return &Replica{
		Hash:          rapid.Uint64().Draw(t, "hash"),
		Priority:      rapid.Int().Draw(t, "priority"),
		Weight:        rapid.Float64Range(0.01, 100).Draw(t, "weight"),
		Stale:         rapid.Bool().Draw(t, "stale"),
		Waiting:       anyGauge(t, "waiting"),
		Running:       anyGauge(t, "running"),
		KVUsage:       anyGauge(t, "kv"),
		BatchCapacity: anyGauge(t, "batch"),
		DrainRate:     anyGauge(t, "drain rate"),
		Inflight:      rapid.IntRange(0, 100000).Draw(t, "inflight"),
		PendingTokens: rapid.Int64Range(0, math.MaxInt64).Draw(t, "pending"),
	}
}

func anyReplicas(t *rapid.T) []*Replica {
	return rapid.SliceOfN(rapid.Custom(anyReplica), 1, 12).Draw(t, "replicas")
}
