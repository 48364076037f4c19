package admit

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/schedule"
)

// Depth is what waits for a model in a band.
type Depth struct {
	Model, Band string
	Requests    int
	Tokens      int64
	Bytes       int64
	Oldest      time.Duration // how long the first of them has waited
}

// Depths returns what waits, by model and then by band, the highest first. Bands in
// which nothing waits are left out.
func (g *Gate) Depths() []Depth {
	g.lock()
	defer g.unlock()
	now := g.now()
	var all []Depth
	for name, q := range g.models {
		for i := range q.bands {
			d := &q.bands[i]
			if d.list.n == 0 {
				continue
			}
			all = append(all, Depth{
				Model: name, Band: g.bands[i].Name, Requests: d.list.n, Tokens: d.tokens, Bytes: d.bytes,
				Oldest: now.Sub(d.list.first.w.since),
			})
		}
	}
	slices.SortStableFunc(all, func(a, b Depth) int { return cmp.Compare(a.Model, b.Model) })
	return all
}

// Verdict is what the gate would say of a request now.
type Verdict struct {
	// Band is the request's.
	Band string
	// Ceiling is the band's; Saturation that of all replicas of the model, 1 is full.
	Ceiling, Saturation float64
	// Refused is why the request would be refused at once, "" if it would not.
	Refused Reason
	// Fallback is the model that would serve it in that case, or after its wait for a
	// replica; "" if none can now.
	Fallback string
	// Waits is why the request would wait, one of the Wait constants, or "".
	Waits string
	// Ahead is how many requests wait in its band and above, Tokens how many tokens are
	// expected to go before it.
	Ahead  int
	Tokens int64
	// Estimate is how long it would wait, if EstimateKnown.
	Estimate      time.Duration
	EstimateKnown bool
	// Free and Slots are how many more requests the replicas can run at once, and in
	// all; below 0 if nobody knows. Headroom is how many of the free ones the band
	// leaves to higher bands, and HeadroomTokens how much of the KV caches.
	Free, Slots, Headroom, HeadroomTokens float64
}

// Explain says what would become of a request, without counting it anywhere.
func (g *Gate) Explain(r *Request) Verdict {
	g.lock()
	defer g.unlock()
	now := g.now()
	w := g.newWaiter(r, now)
	b, s := &g.bands[w.band], w.set
	p := g.judge(w, now)
	v := s.look(now, question{})
	saturation, _ := s.saturation(s.endpoints, now, r.Model.Admission.P90)
	out := Verdict{
		Band: b.Name, Ceiling: b.Ceiling, Saturation: saturation,
		Refused: p.refused, Waits: p.reason, Free: finite(v.free), Slots: finite(v.slots),
		Estimate: p.wait, EstimateKnown: p.wait > 0,
	}
	if m := w.fallback(nil); m != nil && (p.refused == ReasonNoReplica || p.reason == WaitReplica) {
		out.Fallback = m.Name
	}
	slots, tokens, _ := s.headroom(w.band, now)
	out.Headroom, out.HeadroomTokens = v.bound(slots, tokens, s.below(w.band), s.size.value)
	for i := range w.band + 1 {
		out.Ahead += s.lanes[i].all()
	}
	if out.Waits != "" {
		higher, own := s.ahead(w)
		out.Tokens = higher + own
		if s.before(b, w.band) && p.refused != ReasonNoReplica {
			out.Waits = WaitTurn // whatever these wait for
		}
	}
	return out
}

// finite returns v, or -1 if it is infinite.
func finite(v float64) float64 {
	if math.IsInf(v, 0) {
		return -1
	}
	return v
}

// Saturations returns how saturated a model's replicas are, by pool.
func Saturations(m *catalog.Model, now time.Time) map[string]float64 {
	pools := make(map[string][]*catalog.Endpoint)
	for _, e := range m.Endpoints {
		pools[e.Pool] = append(pools[e.Pool], e)
	}
	s := set{target: m.TargetWaiting, kvCeiling: m.KVCeiling}
	all := make(map[string]float64, len(pools))
	for pool, endpoints := range pools {
		if v, ok := s.saturation(endpoints, now, m.Admission.P90); ok {
			all[pool] = v
		}
	}
	return all
}

// saturation returns how full those of the replicas are that may be used; ok is false if
// none may.
func (s *set) saturation(endpoints []*catalog.Endpoint, now time.Time, p90 bool) (v float64, ok bool) {
	var all []float64
	for _, e := range endpoints {
		l := e.Replica.Load(now, e.Slots)
		full := max(l.Queued/(s.target*e.Weight), l.KVUsage.Or(0)/s.kvCeiling)
		switch l.State {
		case schedule.Ready:
			all = append(all, full)
		case schedule.Full:
			all = append(all, max(1, full))
		}
	}
	return schedule.Aggregate(all, p90), len(all) > 0
}
