package admit

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/llmgw/llmgw/modules/internal/catalog"
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
	// Ceiling is the band's; Saturation that of the replicas, 1 is full.
	Ceiling, Saturation float64
	// Refused is why the request would be refused, without a wait: it is too large, or
	// there is no replica. "" if it would not.
	Refused Reason
	// Waits is why the request would wait, one of the Wait constants, or "".
	Waits string
	// Ahead is how many requests wait whose turn is not after its, Tokens how many
	// tokens go before it.
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
	band := g.band(r.Band)
	b, s := &g.bands[band], g.set(r.Model, now)
	w := &waiter{model: r.Model, since: now, fallbacks: r.Fallbacks, band: band, tenant: r.Tenant, needs: s.needs(r), set: s}
	first, _, reason, _ := g.turn(w, now)
	v := s.look(now, question{p90: r.Model.Admission.P90})
	out := Verdict{
		Band: b.Name, Ceiling: b.Ceiling, Saturation: v.saturation, Waits: reason,
		Free: finite(v.free), Slots: finite(v.slots),
	}
	slots, tokens := s.headroom(band, now)
	out.Headroom, out.HeadroomTokens = v.bound(slots, tokens)
	for i := range band + 1 {
		out.Ahead += s.lanes[i].n
	}
	if reason == "" && (first != w || s.lanes[band].n > 0) {
		out.Waits = WaitTurn
	}
	switch {
	case v.ready > 0 && float64(r.Least) > v.room:
		out.Refused = ReasonTooLarge
	case w.hopeless(reason):
		out.Refused = ReasonNoReplica
	}
	if out.Waits != "" {
		out.Estimate, out.EstimateKnown = s.wait(w, b, now)
		higher, own := s.ahead(w)
		out.Tokens = higher + own
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
	byPool := make(map[string]*catalog.Model)
	for _, e := range m.Endpoints {
		p := byPool[e.Pool]
		if p == nil {
			own := *m
			own.Endpoints = nil
			p = &own
			byPool[e.Pool] = p
		}
		p.Endpoints = append(p.Endpoints, e)
	}
	all := make(map[string]float64, len(byPool))
	for pool, m := range byPool {
		if v := newSet(m, nil).look(now, question{p90: m.Admission.P90}); v.ready > 0 {
			all[pool] = v.saturation
		}
	}
	return all
}
