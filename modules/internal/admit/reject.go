package admit

import (
	"context"
	"fmt"
	"math"
	"time"
)

// Reason says why a request was refused. They are the values of a metric's label.
type Reason string

// The reasons.
const (
	// ReasonFull is a queue that holds as much as it may.
	ReasonFull Reason = "full"
	// ReasonTTL is a request that has waited for as long as any may.
	ReasonTTL Reason = "ttl"
	// ReasonDeadline is one that would wait, or has waited, for longer than it
	// cares to.
	ReasonDeadline Reason = "deadline"
	// ReasonDisplaced is one that made room for one of a higher band.
	ReasonDisplaced Reason = "displaced"
	// ReasonGone is one whose client left.
	ReasonGone Reason = "client_gone"
	// ReasonTooLarge is one with more tokens than any replica can hold.
	ReasonTooLarge Reason = "too_large"
	// ReasonNoReplica is one for which there is no replica.
	ReasonNoReplica Reason = "no_replica"
)

// Reasons are all reasons.
var Reasons = []Reason{ReasonFull, ReasonTTL, ReasonDeadline, ReasonDisplaced, ReasonGone, ReasonTooLarge, ReasonNoReplica}

// RejectedError is the error of a request that was refused.
type RejectedError struct {
	// Reason says why.
	Reason Reason
	// Band is the request's.
	Band string
	// GaveWay says that the queue is full and it had waited there, and another of its band
	// got its place.
	GaveWay bool
	// RetryAfter is when a retry may do better, 0 if nobody knows.
	RetryAfter time.Duration
	// Room is, for one that is too large, how many tokens the largest replica
	// holds.
	Room int64
}

// Unwrap returns context.Canceled if the client is gone, or else nil.
func (r *RejectedError) Unwrap() error {
	if r.Reason == ReasonGone {
		return context.Canceled
	}
	return nil
}

// Error implements error.
func (r *RejectedError) Error() string {
	return fmt.Sprintf("not admitted (band %s): %s", r.Band, r.Reason)
}

// The bounds of what is said of a wait.
const (
	leastWait = time.Second
	mostWait  = 5 * time.Minute
	longest   = 24 * time.Hour
)

// refuse makes the error. It needs mu.
func (g *Gate) refuse(w *waiter, reason Reason, wait time.Duration) *RejectedError {
	r := &RejectedError{Reason: reason, Band: w.name}
	switch reason {
	case ReasonFull, ReasonTTL, ReasonDeadline, ReasonDisplaced:
		known := wait > 0
		if !known {
			wait, known = w.set.wait(w, &g.bands[w.band], g.now())
		}
		if !known { // its turn did not come in all that time, nor that of the oldest of its band
			since := w.since
			if k := w.set.ages[w.band].first; k != nil && k.w.since.Before(since) {
				since = k.w.since
			}
			wait = g.now().Sub(since).Round(time.Second)
		}
		r.RetryAfter = min(max(wait, leastWait), mostWait)
	case ReasonTooLarge:
		r.Room = int64(w.set.look(g.now(), question{}).room)
	}
	if reason == ReasonNoReplica && len(w.fallbacks) > 0 {
		return r // the next of these is asked
	}
	if g.Refused != nil {
		g.Refused(w.model.Name, w.name, reason)
	}
	return r
}

// wait estimates how long a new request would wait: until the replicas have done enough
// of what they have, and then for the tokens that go before it: those of higher bands at
// the rate at which tokens have gone of late, and those of its own at that of its band
// and those below, since what higher bands took they will take again. ok is false if it
// is too early to say. It needs the gate's mu.
func (s *set) wait(w *waiter, b *Band, now time.Time) (d time.Duration, ok bool) {
	seconds, ok := s.backlog(w, b, now)
	higher, own := s.ahead(w)
	if higher+own > 0 {
		var rate float64
		if rate, ok = s.rate(w.band, now); !ok { // higher bands leave it nothing, or nobody knows
			return 0, false
		}
		seconds += float64(own) / rate
		if higher > 0 {
			rate, _ = s.rate(0, now) // of the same and more
			seconds += float64(higher) / rate
		}
	}
	return time.Duration(min(seconds, longest.Seconds()) * float64(time.Second)), ok
}

// backlog estimates in how many seconds the replica with most room comes below the
// ceiling of a band, while all go on as they do.
func (s *set) backlog(w *waiter, b *Band, now time.Time) (seconds float64, ok bool) {
	v := s.look(now, question{slots: w.slots, hasty: true, tokens: w.holds, ceiling: b.Ceiling, low: b.low})
	if v.ready == 0 || math.IsInf(v.slots, 1) || !s.held.known {
		return 0, false
	}
	ends := 1.0 // until a slot is free, of all of them
	if over := v.own - b.Ceiling; over > 0 {
		ends = max(1, over*v.queue*float64(v.ready))
	}
	return ends * s.held.value / v.slots, true
}

// ahead estimates how many tokens go before a request, of higher bands and of its own.
func (s *set) ahead(w *waiter) (higher, own int64) {
	for i := range w.band {
		higher += s.lanes[i].tokens
	}
	l := &s.lanes[w.band]
	own = l.before(w.tenant, w.tokens)
	if l.aside != nil && w.slots > 1 { // it will be set aside, too
		own += l.aside.before(w.tenant, w.tokens)
	}
	return higher, own
}

// expect bounds what a request of so many sequences allows itself by twice the mean of what
// sequences have needed of late: many ask for far more than they use. It needs no lock.
func (s *set) expect(output, sequences int64) int64 {
	if limit := s.outputLimit.Load(); limit > 0 {
		output = min(output, limit*sequences)
	}
	return output
}

// room reports whether the queue has room for a request, if others give way to it: those
// of lower bands, and in its own the newest of the tenant with most, which is returned,
// if he has more than its tenant. Then no tenant can shut others out. It needs mu.
func (g *Gate) room(w *waiter) (other *waiter, ok bool) {
	limits, q := &w.model.Admission, g.models[w.model.Name]
	if q == nil {
		return nil, g.bands[w.band].Queue > 0 && limits.MaxQueued > 0 && w.bytes <= limits.MaxQueuedBytes
	}
	n, bytes := q.n, q.bytes+w.bytes
	for i := w.band + 1; i < len(q.bands); i++ {
		n, bytes = n-q.bands[i].list.n, bytes-q.bands[i].bytes
	}
	if q.bands[w.band].list.n < g.bands[w.band].Queue && n < limits.MaxQueued && bytes <= limits.MaxQueuedBytes {
		return nil, true
	}
	other = q.bands[w.band].crowd.longest(w)
	return other, other != nil && bytes-other.bytes <= limits.MaxQueuedBytes
}

// makeRoom makes those give way, the newest of the lowest bands first, or returns false
// if that is not enough. It needs mu.
func (g *Gate) makeRoom(w *waiter) bool {
	other, ok := g.room(w)
	if !ok {
		return false
	}
	if other != nil {
		g.displace(other, ReasonFull)
	}
	limits := &w.model.Admission
	for q := g.models[w.model.Name]; q != nil && (q.n >= limits.MaxQueued || q.bytes+w.bytes > limits.MaxQueuedBytes); {
		g.displace(q.lowest(), ReasonDisplaced)
	}
	return true
}

// lowest returns the newest request of the lowest band, or nil.
func (q *queue) lowest() *waiter {
	for i := len(q.bands) - 1; i >= 0; i-- {
		if k := q.bands[i].list.last; k != nil {
			return k.w
		}
	}
	return nil
}

// displace refuses a request that waits. It needs mu.
func (g *Gate) displace(w *waiter, reason Reason) {
	g.dequeue(w, false, g.now())
	r := g.refuse(w, reason, 0)
	r.GaveWay = reason == ReasonFull
	w.err = r
	close(w.ready)
}
