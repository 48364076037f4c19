package admit

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/internal/fleet"
	"github.com/llmgw/llmgw/modules/schedule"
)

// view is a set as it is at a moment.
type view struct {
	ready, full int     // replicas that take work, and that have said they are full
	partial     bool    // others take work, but not requests of so many sequences
	own         float64 // saturation of the best one's queue, with the request
	question    question
	free, slots float64 // how many more they can run at once, and in all; infinite if nobody knows
	fits        bool    // one of them has room for the tokens, or nothing to do
	room        float64 // the most tokens that one of all can ever hold; infinite if one does not say
	// How many tokens they have room for together, now and at all; infinite if one
	// does not say.
	freeTokens, allTokens float64
	idle                  bool // one of them has nothing to do
	best                  *fleet.Replica
	turn                  uint64              // to reserve on it
	need, takes           float64             // how many of its slots have to be free for the request, and it takes
	load                  float64             // of it, with the request
	queue                 float64             // how many requests make its saturation 1
	headroom              float64             // how many slots the band leaves free; see mayGo
	closed                []*catalog.Endpoint // those that it leaves to others
}

// trusted is how many requests at once a replica is trusted with at least, as
// long as nobody has seen it full.
const trusted = 16

// question is what a view is taken for.
type question struct {
	slots   int64   // that the request takes
	hasty   bool    // it goes with half of them, or of a replica's
	alone   bool    // it goes to an idle replica only
	urgent  bool    // it may take what is left free for higher bands
	tokens  int64   // that it will hold
	ceiling float64 // of its band
	higher  bool    // higher bands have needed slots of late
	low     bool    // the band is below the default one
}

// look takes a view. While higher bands are in use, and for low ones, a replica that
// nobody has seen full is trusted with twice what it was seen to run, if it says what
// it runs, and otherwise with any number.
func (s *set) look(now time.Time, q question) view { return s.lookAt(s.endpoints, now, q) }

// lookAt takes a view of some of the replicas.
func (s *set) lookAt(endpoints []*catalog.Endpoint, now time.Time, q question) view {
	var v view
	bestFree, bestLoad := -1.0, math.Inf(1)
	v.own, v.question = math.Inf(1), q
	for _, e := range endpoints {
		l := e.Replica.Load(now, e.Slots)
		room := l.Tokens.Or(math.Inf(1))
		v.room = max(v.room, room)
		switch {
		case l.State == schedule.Full:
			v.full++
			continue
		case l.State != schedule.Ready:
			continue
		case !e.Replica.TakesMany(now, q.slots):
			v.partial = true
			continue
		}
		v.ready++
		q.trust(&l)
		free, slots := l.Free.Or(math.Inf(1)), l.Slots.Or(math.Inf(1))
		v.free, v.slots = v.free+free, v.slots+slots
		left, idle := math.Inf(1), l.Total == 0
		if l.FreeTokens.Known() {
			left = float64(l.FreeTokens) - s.kvReserve*room
		}
		fits := q.tokens == 0 || idle || left >= float64(q.tokens) && l.KVUsage.Or(0)/s.kvCeiling <= q.kvLimit(l.Tokens.Known())
		// One that is more than the replica can run at once needs all of it, and is its
		// to queue.
		wide := float64(max(1, q.slots))
		takes := min(wide, max(1, slots))
		if q.alone && !math.IsInf(slots, 1) {
			takes = slots
		}
		need, load, queue := takes, l.Total/e.Weight, s.target*e.Weight
		if q.hasty {
			need = math.Ceil(takes / 2)
		}
		own := 0.0
		switch {
		case idle:
		case wide > slots && !q.hasty, q.alone:
			own = math.Inf(1)
		default:
			own = l.QueuedWith(need) / queue
		}
		if !q.mayQueue(&l, need) {
			own = math.Inf(1)
		}
		if fits && !v.fits || fits == v.fits && cmp.Or(cmp.Compare(own, v.own), cmp.Compare(bestFree, free), cmp.Compare(load, bestLoad)) < 0 {
			bestFree, bestLoad = free, load
			v.best, v.turn, v.need, v.takes, v.own, v.load, v.queue = e.Replica, l.Turn, need, takes, own, l.Total+wide, queue
		}
		v.fits, v.idle = v.fits || fits, v.idle || idle
		v.freeTokens, v.allTokens = v.freeTokens+max(0, left), v.allTokens+room
	}
	return v
}

// measure notes how much replicas can do, if one takes work. Those that have said they are
// full run as many requests as the others.
func (s *set) measure(v *view) {
	if v.ready == 0 || v.partial {
		return
	}
	slots := v.slots
	if s.size.value > 0 {
		slots = min(slots, max(1, v.allTokens/s.size.value))
	}
	s.each, s.room = slots/float64(v.ready), v.room
	s.slots = slots * float64(v.ready+v.full) / float64(v.ready)
}

// without takes a view of the replicas that are not closed, with the totals of all.
func (s *set) without(closed []*catalog.Endpoint, q question, all *view, now time.Time) view {
	v := s.lookAt(slices.DeleteFunc(slices.Clone(s.endpoints), func(e *catalog.Endpoint) bool { return slices.Contains(closed, e) }), now, q)
	v.full, v.room, v.closed, v.headroom = all.full, all.room, closed, all.headroom
	v.free, v.slots, v.freeTokens, v.allTokens = all.free, all.slots, all.freeTokens, all.allTokens
	return v
}

// trust says how many requests at once a replica is trusted with that nobody has seen full.
func (q question) trust(l *fleet.Load) {
	if !l.Slots.Known() && (q.higher || q.low && l.Proven.Known()) {
		l.Trust(max(trusted, 2*schedule.Gauge(l.Proven.Or(0))))
	}
}

// mayQueue reports whether a request that needs so many slots goes to a replica as far as
// the gateway's own requests there are concerned: while higher bands are in use it does not
// if it would have to wait for these, since it would take the slot that one of a higher band
// frees for its next.
func (q question) mayQueue(l *fleet.Load, need float64) bool {
	return !q.higher || !(l.Own+need > float64(l.Slots))
}

// kvLimit is how full a replica's KV cache may be, as a part of kv_ceiling. Lower
// bands leave tokens to higher ones; where nobody knows how many there are, their
// ceilings count for the cache as they do for the queue.
func (q question) kvLimit(tokensKnown bool) float64 {
	if q.higher && !tokensKnown {
		return q.ceiling
	}
	return max(1, q.ceiling)
}

// bound bounds what a band leaves free of slots and tokens: never more than half of what it
// could have with what is free, or a burst would leave replicas idle for long. What others
// have is not its to leave: low is how many slots its requests and those of lower bands
// have, of so many tokens each.
func (v *view) bound(slots, tokens float64, low int64, size float64) (_, _ float64) {
	own := float64(max(0, low))
	return min(slots, math.Floor((v.free+own)/2)), min(tokens, (v.freeTokens+own*size)/2)
}

// judge is mayGo by what there is, with so many slots and tokens to leave free.
func (v *view) judge(b *Band, tokens int64, slots, spare float64) string {
	switch {
	case v.ready == 0 && v.full > 0:
		return WaitFull
	case v.ready == 0:
		return WaitReplica
	case v.question.alone && !v.idle:
		return WaitSaturated
	case b.Ceiling >= Unlimited:
		return ""
	case !v.fits:
		return WaitTokens
	case v.own > b.Ceiling:
		return WaitSaturated
	case tokens > 0 && !v.idle && v.freeTokens-float64(tokens) < spare:
		return WaitHeadroom
	case slots > 0 && v.free-v.need < min(slots, v.slots-v.taken()):
		return WaitHeadroom
	}
	return ""
}

// reserves returns as how many a request of so many slots counts until it is placed.
func (v *view) reserves(slots int64) int64 {
	if v.question.alone {
		return max(slots, int64(v.takes))
	}
	return slots
}

// taken returns how many slots the request takes of those that could be left free: all that
// it will have in the end, if it is to go whatever that leaves.
func (v *view) taken() float64 {
	if v.question.urgent {
		return v.takes
	}
	return v.need
}
