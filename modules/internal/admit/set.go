package admit

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/llmgw/llmgw/modules/internal/catalog"
)

// set is the replicas of a model, and its thresholds. Models that have both in
// common, such as the adapters on one base model, share a set: they compete for
// the same slots.
type set struct {
	endpoints []*catalog.Endpoint
	target    float64     // waiting requests that fill a replica
	kvCeiling float64     // KV usage that does
	kvReserve float64     // share of the tokens that is left free
	blocked   uint64      // the round of dispatch in which it was found that no lower band goes
	lanes     []lane      // by band, the highest first
	ages      []list      // by band: the same, by arrival
	turns     []int       // by band: how many requests of higher ones went since one of it did
	tags      []tags      // by band
	running   []int64     // by band: how many slots its requests have
	standing  []int64     // by band: how many slots those take that wait
	leases    int         // how many there are
	demand    []demand    // by band: of the bands above it
	paced     []time.Time // by band: when the next of it may go into the second half of the slots, see pace
	waiting   int
	kept      []kept
	walk      uint64    // the last of the gate's walks that came here, see around
	held      average   // how long an engine runs a request, in seconds
	size      average   // of a request, in tokens that it holds in each of its slots
	output    average   // of a request, in tokens of each of its sequences
	drained   []drained // by band
	busy      busyPeriod
	slots     float64 // how many requests run at once at most, as last looked at
	each      float64 // of these, on one replica
	room      float64 // how many tokens a replica can hold at most, as last looked at

	// Without mu.
	used        atomic.Int64                // when last, Unix s
	outputLimit atomic.Int64                // bounds what is expected of a sequence's output, in tokens, 0 if nothing is known
	near        atomic.Pointer[[]neighbour] // the slice is never changed
	front       atomic.Pointer[front]
}

// tags order a set among those that have replicas in common with it: they take turns in a
// band by tokens, as the tenants of a lane do.
type tags struct {
	start float64   // where its next request begins, in tokens
	clock float64   // the band's virtual time: where the one began that went last, of it or of a neighbour
	stuck time.Time // since when its next request cannot go; zero if it can, or there is none
	never float64   // the tokens that were not to be had for long; 0 if all were
	rest  time.Time // until then no replica is kept for that one
	calm  time.Time // until then none takes what is left free for higher bands
	// asideRest is as rest, for those that others pass.
	asideRest time.Time
}

// busyPeriod is the time in which requests wait.
type busyPeriod struct {
	since        time.Time // when they began to; zero if none do
	before, left int       // how many leases there were then, and which of these there still are
}

// neighbour is another set that has replicas in common with this one.
type neighbour struct {
	set    *set
	shared []*catalog.Endpoint // of this one, the replicas that are in both
	share  float64             // how many of the other's these are
	covers bool                // they are all of this one's
}

// setKey tells sets apart.
func setKey(m *catalog.Model) string {
	var b strings.Builder
	for _, part := range []float64{m.TargetWaiting, m.KVCeiling, m.Admission.KVReserve} {
		b.WriteString(strconv.FormatFloat(part, 'g', -1, 64))
		b.WriteByte(' ')
	}
	ids := make([]string, len(m.Endpoints))
	for i, e := range m.Endpoints {
		ids[i] = strconv.FormatUint(e.Replica.Serial, 10) + "*" + strconv.FormatFloat(e.Weight, 'g', -1, 64) + "*" + strconv.Itoa(e.Slots)
	}
	slices.Sort(ids)
	for _, id := range ids {
		b.WriteByte(' ')
		b.WriteString(id)
	}
	return b.String()
}

func newSet(m *catalog.Model, bands int) *set {
	s := &set{
		endpoints: m.Endpoints, target: m.TargetWaiting, kvCeiling: m.KVCeiling,
		kvReserve: m.Admission.KVReserve,
		demand:    make([]demand, bands), paced: make([]time.Time, bands), drained: make([]drained, bands),
	}
	s.empty(bands)
	return s
}

// neighbours returns the sets that have replicas in common with this one.
func (s *set) neighbours() []neighbour {
	if near := s.near.Load(); near != nil {
		return *near
	}
	return nil
}

// empty makes the queues of so many bands.
func (s *set) empty(bands int) {
	s.lanes, s.ages = make([]lane, bands), make([]list, bands)
	s.turns, s.running, s.standing = make([]int, bands), make([]int64, bands), make([]int64, bands)
	s.tags = make([]tags, bands)
}

// learn takes over what was learnt with other replicas of the same model. Its demand comes
// here from now on, and must not count twice.
//
// Where other models are still served by these, it stays there: a neighbour's counts, too.
func (s *set) learn(o *set, others bool) {
	copy(s.turns, o.turns)
	s.held, s.size, s.output = o.held, o.size, o.output
	s.outputLimit.Store(o.outputLimit.Load())
	if others {
		return
	}
	copy(s.demand, o.demand)
	clear(o.demand)
	front, before := s.front.Load(), o.front.Load()
	for band := range front.last {
		front.last[band].Store(before.last[band].Load())
	}
}

// headroom returns how many slots, and tokens, a band leaves free for those above it, and
// whether these are in use: then they may have all that they need already.
func (s *set) headroom(band int, now time.Time) (slots, tokens float64, higher bool) {
	add := func(o *set, share float64) {
		d := &o.demand[band]
		higher = higher || d.of(now)
		running, _ := o.above(band)
		h := math.Ceil(share * float64(d.headroom(running, now)))
		slots, tokens = slots+h, tokens+h*d.size.value
	}
	add(s, 1)
	for _, n := range s.neighbours() {
		if n.covers {
			add(n.set, n.share)
		} else { // see leave
			higher = higher || n.set.demand[band].of(now)
		}
	}
	return slots, tokens, higher
}

// leave returns the replicas that a band leaves to higher bands of sets that have only
// some of this one's: what is free elsewhere is of no use to these.
func (s *set) leave(band int, q question, all *view, now time.Time) (closed []*catalog.Endpoint) {
	for _, n := range s.neighbours() {
		if n.covers {
			continue
		}
		running, _ := n.set.above(band)
		h := math.Ceil(n.share * float64(n.set.demand[band].headroom(running, now)))
		if h == 0 {
			continue
		}
		v := s.lookAt(n.shared, now, q)
		low := float64(s.below(band)) * v.slots / all.slots // how many of them are there nobody counts
		if leaves, _ := v.bound(h, 0, int64(low), 0); v.free-all.need < min(leaves, v.slots-all.taken()) {
			closed = append(closed, n.shared...)
		}
	}
	return closed
}

// above returns how many slots requests of higher bands have, and how many those take
// that wait.
func (s *set) above(band int) (running, standing int64) {
	for i := range band {
		running, standing = running+s.running[i], standing+s.standing[i]
	}
	return running, standing
}

// below returns how many slots requests of a band and of lower ones have.
func (s *set) below(band int) (running int64) {
	for _, n := range s.running[band:] {
		running += n
	}
	return running
}

// went notes that a request of a band was let go.
func (s *set) went(band int, n needs) {
	s.leases++
	s.running[band] += n.slots
	s.turns[band] = 0
	t := &s.tags[band]
	t.clock, t.stuck = max(t.clock, t.start), time.Time{}
	if float64(n.holds) >= t.never {
		t.never = 0
	}
	t.start = t.clock + float64(max(1, n.tokens))
	for _, o := range s.neighbours() {
		if band < len(o.set.tags) {
			o.set.tags[band].clock = max(o.set.tags[band].clock, t.clock)
		}
	}
	for i := band + 1; i < len(s.turns); i++ {
		s.turns[i]++
		for _, n := range s.neighbours() {
			if i < len(n.set.turns) {
				n.set.turns[i]++
			}
		}
	}
}

// arrive notes a request of a band, that takes so many slots and will hold so many
// tokens, for those below it.
func (s *set) arrive(band int, slots, tokens int64, now time.Time) {
	s.front.Load().arrive(band, now)
	if band+1 == len(s.demand) {
		return
	}
	rate := 0.0
	if s.held.known && s.held.value > 0 {
		rate = s.slots / s.held.value
	}
	for lower := band + 1; lower < len(s.demand); lower++ {
		running, standing := s.above(lower)
		s.demand[lower].arrive(now, rate, slots, running+standing+slots, tokens)
	}
}

// The reasons for which a request waits.
const (
	WaitSaturated = "saturated"  // the replicas are above the band's ceiling
	WaitHeadroom  = "headroom"   // what is free is left for higher bands
	WaitPaced     = "paced"      // requests of the band went a moment ago
	WaitTokens    = "kv_tokens"  // no replica has room for its tokens
	WaitFull      = "full"       // the replicas refuse more than they have
	WaitReplica   = "no_replica" // none may be given work
	WaitTurn      = "turn"       // others were there before
)

// mayGo says whether a request may go now, as one of the band: "" if it may, else why not,
// and when that ends if it is a matter of time alone. It needs mu.
func (s *set) mayGo(b *Band, band int, w *waiter, now time.Time) (v view, reason string, again time.Time) {
	h, spare, higher := s.headroom(band, now)
	q := question{slots: w.slots, alone: w.alone, hasty: !w.alone && !w.patient(now), urgent: w.urgent(now), tokens: w.holds, ceiling: b.Ceiling, higher: higher, low: b.low}
	v = s.look(now, q)
	s.measure(&v)
	var closed []*catalog.Endpoint
	if b.Ceiling < Unlimited && v.ready > 0 {
		closed = s.closed(w, band, now)
		if higher {
			closed = append(closed, s.leave(band, q, &v, now)...)
		}
	}
	v.headroom = h
	if len(closed) > 0 && v.ready > 0 {
		rest := s.without(closed, q, &v, now)
		if rest.ready == 0 {
			return v, WaitHeadroom, time.Time{}
		}
		v = rest
	}
	leaves, spare := v.bound(h, spare, s.below(band), s.size.value)
	if reason = v.judge(b, w.holds, leaves, spare); reason != "" || h == 0 || b.Ceiling >= Unlimited || math.IsInf(v.free, 1) {
		return v, reason, time.Time{}
	}
	if now.Before(s.paced[band]) && v.scarce() {
		return v, WaitPaced, s.paced[band]
	}
	return v, "", time.Time{}
}

// scarce reports whether half of the slots are taken.
func (v *view) scarce() bool { return v.free <= v.slots/2 }

// pace keeps requests of a band that leaves headroom from taking the second half of the
// slots all at once, at twice the rate at most at which slots are freed: what goes
// together ends together, and between two such ends no slot is freed for whoever comes.
func (s *set) pace(band int, v view, now time.Time) {
	if v.headroom == 0 || !s.held.known || math.IsInf(v.slots, 1) || !v.scarce() {
		return
	}
	gap := time.Duration(v.takes * s.held.value / v.slots / 2 * float64(time.Second))
	last := s.paced[band]
	if last.Before(now.Add(-gap)) {
		last = now.Add(-gap)
	}
	s.paced[band] = last.Add(gap)
}
