// Package pipeline makes one scheduling decision: it drops the replicas that
// must not get the request, chooses a pool, lets the profile's scorers value
// the pool's replicas and its picker choose one, and keeps the reasons.
//
// It is pure (see package schedule): everything it knows comes in with the
// request and the snapshot.
package pipeline

import (
	"slices"
	"sync"

	"github.com/llmgw/llmgw/modules/schedule"
)

// WeightedScorer is one scorer of a profile.
type WeightedScorer struct {
	// Name is the scorer's name in config, for explanations and metrics.
	Name string
	// Weight multiplies its value; above 0.
	Weight float64
	// Scorer gives the value.
	Scorer schedule.Scorer
}

// NamedFilter is one filter of a profile.
type NamedFilter struct {
	// Name is the filter's name in config.
	Name string
	// Filter decides.
	Filter schedule.Filter
}

// Profile is a routing profile: what decides where a request goes. It is
// immutable once in use.
type Profile struct {
	// Name is the profile's name in config, such as "chat".
	Name string
	// Filters run after the built-in ones, in order.
	Filters []NamedFilter
	// Scorers are summed by weight.
	Scorers []WeightedScorer
	// PickerName is the picker's name in config.
	PickerName string
	// Picker chooses by the sums.
	Picker schedule.Picker
}

// The reasons of the built-in filters, in addition to the states' names.
const (
	// ReasonTried marks a replica that this request failed on before.
	ReasonTried = "tried"
	// ReasonPool marks a replica of a pool that was not chosen.
	ReasonPool = "other_pool"
	// ReasonRoom is for replicas where the request would wait, or wait for longer, while
	// another has room for it.
	ReasonRoom = "no_room"
	// ReasonAbsent is for replicas to which the request's adapter would have to be brought, while
	// others have it.
	ReasonAbsent = "adapter_absent"
	// ReasonAdapter is for replicas that could not load the request's adapter a moment ago.
	ReasonAdapter = "adapter_failed"
)

// stalePenalty is the share of the highest possible total that a replica loses
// while its last scrape failed: it stays, but any fresh one of like load wins.
const stalePenalty = 0.25

// Decision is the scratch space and the outcome of one decision. Get one with
// [NewDecision], fill Candidates, call [Decision.Decide], and give it back
// with [Decision.Free]. Not for concurrent use.
type Decision struct {
	// Candidates is the snapshot: all replicas of the model.
	Candidates []schedule.Replica
	// Rejected holds, per candidate, why it got no score; "" for those that
	// did.
	Rejected []string
	// Pool is the pool of the chosen candidate.
	Pool string
	// Saturation is that pool's, over its eligible replicas.
	Saturation float64
	// Spilled is true if a pool of higher priority was passed over because it
	// was saturated.
	Spilled bool
	// Pick is the index of the chosen candidate, -1 if there is none.
	Pick int

	eligible []*schedule.Replica
	index    []int // eligible -> candidate
	pools    []poolView
	totals   []float64
	values   []float64 // scorer-major: len(scorers) rows of len(eligible)
}

var decisions = sync.Pool{New: func() any { return new(Decision) }}

// NewDecision returns an empty decision from a pool.
func NewDecision() *Decision {
	d := decisions.Get().(*Decision)
	d.Candidates = d.Candidates[:0]
	return d
}

// Free gives the decision back; it must not be used afterwards.
func (d *Decision) Free() {
	clear(d.eligible[:cap(d.eligible)]) // holds no pointer into a snapshot that has grown away
	decisions.Put(d)
}

// Decide fills in the outcome. It returns false if no candidate is eligible;
// Rejected then holds the reasons.
func (d *Decision) Decide(p *Profile, req *schedule.Request) bool {
	d.Pick, d.Pool, d.Saturation, d.Spilled = -1, "", 0, false
	d.filter(p, req)
	if !d.choosePool(req) {
		return false
	}
	d.chooseRoom()
	d.chooseAdapter()
	n := len(d.eligible)
	d.totals = resize(d.totals, n)
	clear(d.totals)
	d.values = resize(d.values, n*len(p.Scorers))
	weights := 0.0
	for i, s := range p.Scorers {
		row := d.values[i*n : (i+1)*n]
		s.Scorer.Score(req, d.eligible, row)
		for j, v := range row {
			if !(v >= schedule.Penalty && v <= 1) {
				v = contain(v)
				row[j] = v
			}
			d.totals[j] += s.Weight * v
		}
		weights += s.Weight
	}
	for j, r := range d.eligible {
		if r.Stale {
			d.totals[j] -= stalePenalty * weights
		}
	}
	d.Pick = d.index[p.Picker.Pick(req, d.eligible, d.totals)]
	d.Pool = d.Candidates[d.Pick].Pool
	for _, v := range d.pools {
		if v.name == d.Pool {
			d.Saturation = v.saturation
		}
	}
	return true
}

// Cache says what became of the wish to go where the prompt's beginning is held. Call it after
// [Decision.Decide], which has chosen one, or after Pick was set.
func (d *Decision) Cache(req *schedule.Request) schedule.CacheDecision {
	if d.Pick < 0 {
		return schedule.CacheNoWorker
	}
	best := schedule.Unknown
	for i := range d.Candidates {
		if r := &d.Candidates[i]; r.State == schedule.Ready && r.Adapter != schedule.AdapterFailed && r.Cached.Known() && !(best >= r.Cached) {
			best = r.Cached
		}
	}
	return schedule.DecideCache(req, d.Candidates[d.Pick].Cached, best)
}

// contain brings a value that no scorer should give into the bounds: other
// people's plugins divide by zero, too, and a picker needs finite totals.
func contain(v float64) float64 {
	if v != v {
		return 0
	}
	return max(schedule.Penalty, min(1, v))
}

// filter fills Rejected and the eligible replicas.
func (d *Decision) filter(p *Profile, req *schedule.Request) {
	d.Rejected = resize(d.Rejected, len(d.Candidates))
	d.eligible, d.index = d.eligible[:0], d.index[:0]
	for i := range d.Candidates {
		r := &d.Candidates[i]
		d.Rejected[i] = reject(p, req, r)
		if d.Rejected[i] == "" {
			d.eligible = append(d.eligible, r)
			d.index = append(d.index, i)
		}
	}
}

func reject(p *Profile, req *schedule.Request, r *schedule.Replica) string {
	if r.State != schedule.Ready {
		return r.State.String()
	}
	if r.Tried {
		return ReasonTried
	}
	if r.Adapter == schedule.AdapterFailed {
		return ReasonAdapter
	}
	for _, f := range p.Filters {
		if reason := f.Filter.Filter(req, r); reason != "" {
			return reason
		}
	}
	return ""
}

// choosePool keeps only the replicas of the pools with the highest priority
// among those that are not saturated. If all are, it keeps those of the least
// saturated one, since the request has to go somewhere; of equals the first in
// config order. It returns false if no replica is eligible.
func (d *Decision) choosePool(req *schedule.Request) bool {
	if len(d.eligible) == 0 {
		return false
	}
	d.viewPools(req)
	best, top := d.pools[0], d.pools[0].priority
	for _, v := range d.pools[1:] {
		if v.before(best) {
			best = v
		}
		top = max(top, v.priority)
	}
	d.Spilled = top > best.priority
	d.keep(ReasonPool, func(r *schedule.Replica) bool { return d.chosen(r.Pool, best) })
	return true
}

// chooseRoom keeps only the replicas that have most room for the request: none waits in
// one engine while another could run it, for whatever affinity.
func (d *Decision) chooseRoom() {
	best := d.eligible[0].Room
	for _, r := range d.eligible[1:] {
		best = min(best, r.Room)
	}
	d.keep(ReasonRoom, func(r *schedule.Replica) bool { return r.Room == best })
}

// chooseAdapter keeps only the replicas that have the request's adapter, unless these have too much
// to do: bringing it to another takes as long as many requests.
func (d *Decision) chooseAdapter() {
	if !slices.ContainsFunc(d.eligible, func(r *schedule.Replica) bool { return r.Absent }) || schedule.Crowded(d.eligible) {
		return
	}
	d.keep(ReasonAbsent, func(r *schedule.Replica) bool { return !r.Absent })
}

// keep drops the eligible replicas that are not to stay, for a reason.
func (d *Decision) keep(reason string, stays func(*schedule.Replica) bool) {
	n := 0
	for i, r := range d.eligible {
		if !stays(r) {
			d.Rejected[d.index[i]] = reason
			continue
		}
		d.eligible[n], d.index[n] = r, d.index[i]
		n++
	}
	d.eligible, d.index = d.eligible[:n], d.index[:n]
}

// chosen reports whether a pool takes part: the best one does, and of those
// with the same priority all that have room.
func (d *Decision) chosen(name string, best poolView) bool {
	if name == best.name || best.full() {
		return name == best.name
	}
	i := slices.IndexFunc(d.pools, func(v poolView) bool { return v.name == name })
	return d.pools[i].priority == best.priority && !d.pools[i].full()
}

// poolView is what is known of one pool in a decision.
type poolView struct {
	name       string
	priority   int // the highest of its replicas
	saturation float64
	room       schedule.Room // the most that one of its replicas has
}

// full reports whether requests spill over from the pool.
func (v poolView) full() bool { return v.saturation >= 1 || v.room == schedule.RoomNone }

func (v poolView) before(o poolView) bool {
	full, otherFull := v.full(), o.full()
	switch {
	case full != otherFull:
		return !full
	case full && v.saturation != o.saturation:
		return v.saturation < o.saturation
	default:
		return v.priority > o.priority
	}
}

// viewPools fills pools from the eligible replicas. Pools are a handful, so
// they are found without a map.
func (d *Decision) viewPools(req *schedule.Request) {
	d.pools = d.pools[:0]
	for _, r := range d.eligible {
		i := slices.IndexFunc(d.pools, func(v poolView) bool { return v.name == r.Pool })
		if i < 0 {
			i = len(d.pools)
			d.pools = append(d.pools, poolView{name: r.Pool, priority: r.Priority, room: r.Room})
		}
		d.pools[i].priority, d.pools[i].room = max(d.pools[i].priority, r.Priority), min(d.pools[i].room, r.Room)
	}
	for i := range d.pools {
		d.values = d.values[:0]
		for _, r := range d.eligible {
			if r.Pool == d.pools[i].name {
				d.values = append(d.values, schedule.Saturation(req, r))
			}
		}
		d.pools[i].saturation = schedule.Aggregate(d.values, req.P90)
	}
}

// resize returns s with length n, its contents unspecified.
func resize[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n, max(n, 2*cap(s)))
	}
	return s[:n]
}
