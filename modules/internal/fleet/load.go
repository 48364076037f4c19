package fleet

import (
	"time"

	"github.com/llmgw/llmgw/modules/schedule"
)

// Load is what a replica is estimated to have at a moment: what the engine said
// last, moved on by what the gateway has sent it and got back since.
type Load struct {
	// State says whether it may be given work.
	State schedule.State
	// Total is how many requests it has.
	Total float64
	// Own is how many of these are the gateway's.
	Own float64
	// Queued is how many requests wait in it: those beyond its batch capacity, or
	// beyond what it ran when it last said that some wait.
	Queued float64
	// Free is how many more it can run at once: below 0 never, and Unknown while
	// nobody has seen it full and it does not say that some wait.
	Free schedule.Gauge
	// Slots is how many it can run at once, Unknown while nobody has seen it full.
	Slots schedule.Gauge
	// Proven is the most that it was seen to run at once, Unknown while it says
	// nothing of what it runs.
	Proven schedule.Gauge
	// KVUsage is the share of its KV blocks in use, as last scraped.
	KVUsage schedule.Gauge
	// Tokens is how many it can hold, FreeTokens how many of these are free;
	// both Unknown if it does not say.
	Tokens, FreeTokens schedule.Gauge
	// Turn is for [Replica.Reserve].
	Turn uint64

	limit schedule.Gauge // what it ran when it last said that requests wait in it
}

// runs returns how many it runs at once, Unknown if nobody knows. What waits does so for
// a reason, which may be another than the slots.
func (l *Load) runs() schedule.Gauge {
	switch {
	case !l.limit.Known() || l.Slots < l.limit:
		return l.Slots
	default:
		return l.limit
	}
}

// Trust takes the replica for one that can run so many at once.
func (l *Load) Trust(slots schedule.Gauge) {
	l.Slots = slots
	l.settle()
}

// Plus returns the estimate with n of the gateway's requests more, or fewer with n below 0.
func (l Load) Plus(n float64) Load {
	l.Total += n
	l.Own += n
	l.settle()
	return l
}

// settle computes what follows from Total and the slots.
func (l *Load) settle() {
	if runs := l.runs(); runs.Known() {
		l.Queued = max(0, l.Total-float64(runs))
		l.Free = max(0, runs-schedule.Gauge(l.Total))
	}
}

// QueuedWith returns how many would wait in it with n requests more.
func (l *Load) QueuedWith(n float64) float64 {
	if runs := l.runs(); runs.Known() {
		return max(0, l.Total+n-float64(runs))
	}
	return l.Queued
}

// Load returns the estimate. slots is the batch capacity where config says so; 0
// takes the one that was learnt. It takes no lock and does not allocate.
func (r *Replica) Load(now time.Time, slots int) Load {
	s := r.Stats()
	turn := r.reserved.Load() // first: what is placed meanwhile counts twice, and not never
	sequences := r.sequences()
	// Of requests that are not sent yet nobody counts how many these are: sequences stand for
	// them where it may be full, which is too many for a moment rather than too few.
	reserved := int64(turn & (1<<reservedBits - 1))
	own := float64(sequences + reserved)
	l := Load{
		Turn: turn, State: r.state(now, sequences+reserved), Free: schedule.Unknown, Slots: schedule.Unknown,
		Proven: schedule.Unknown, KVUsage: schedule.Unknown, Tokens: schedule.Unknown, FreeTokens: schedule.Unknown,
		limit: schedule.Unknown,
	}
	if slots == 0 {
		slots = int(r.batch.Load())
	}
	total := own
	if s.counts(now) {
		// What others have on it is what it has beyond what was the gateway's then.
		waiting, running := s.queued().Or(0), s.Running.Or(0)
		total = max(own-s.Deferred, waiting+running+own-float64(s.own)) // what is deferred takes no slot
		l.KVUsage = s.KVUsage
		if s.Running.Known() {
			l.Proven = schedule.Gauge(r.proven.Load())
		}
		if s.Running.Known() && (s.queues() || slots == 0 && waiting > 0) {
			// What waited for the next step alone runs now, and the page is a second old.
			l.limit = r.runs(s)
			if s.KVUsage <= kvFull {
				// What waits has its turn when others' prompts have been read: it can run what it has run.
				l.limit = max(l.limit, schedule.Gauge(r.ran.Load()))
			}
		}
		if n := float64(s.BlockSize) * float64(s.Blocks); n > 0 && s.KVUsage.Known() {
			l.Tokens = schedule.Gauge(n)
			l.FreeTokens = schedule.Gauge(n - r.used(s, n))
		}
	}
	l.Total, l.Own = total, own
	if slots > 0 {
		l.Slots = schedule.Gauge(slots)
	}
	l.settle()
	return l
}

// used estimates how many of n tokens of the KV cache are in use or promised. What
// it said is moved on by the requests that have gone there since; those that waited
// in the engine then had nothing in the cache yet; and of requests that have ended
// what they had there is free, which is not what they were expected to need. Prompts
// that share a prefix hold it once: so the tokens of what runs are not added up.
func (r *Replica) used(s *Stats, n float64) float64 {
	then, now := float64(s.ownTokens), float64(r.pending.Load())
	used, own := float64(s.KVUsage)*n, 1.0
	waiting, running := s.Waiting.Or(0), s.Running.Or(0)
	if waiting+running > 0 {
		used += then * waiting / (waiting + running)
		own = min(1, float64(s.own)/(waiting+running))
	}
	if sent := float64(s.own); waiting+running < sent { // the page lags behind
		used += then * (1 - (waiting+running)/sent)
	}
	if now < then {
		used -= used * own * (1 - now/then)
	} else {
		used += now - then
	}
	return used + float64(r.reservedTokens.Load())
}

// reservedBits are the bits of a replica's reserved that count those of now.
const reservedBits = 24

// Reserve counts a request of so many sequences and tokens that may go to the
// replica and has not been sent to any yet, if nothing was reserved since the [Load]
// with this Turn was taken. Otherwise it returns false, and the caller must look
// again. So no two reservations take the same room, and neither waits for a lock. The
// caller must call Unreserve with the same numbers.
func (r *Replica) Reserve(turn uint64, sequences, tokens int64) bool {
	r.reservedTokens.Add(tokens) // first: who sees the request sees its tokens
	if !r.reserved.CompareAndSwap(turn, turn+1<<reservedBits+uint64(sequences)) {
		r.reservedTokens.Add(-tokens)
		return false
	}
	return true
}

// Unreserve ends what Reserve began.
func (r *Replica) Unreserve(sequences, tokens int64) {
	r.reserved.Add(-uint64(sequences))
	r.reservedTokens.Add(-tokens)
}
