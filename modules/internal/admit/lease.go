package admit

import (
	"slices"
	"sync"
	"time"

	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/internal/fleet"
	"github.com/llmgw/llmgw/modules/schedule"
)

// Lease is the right to send a request to the replicas of a set: it counts there
// from when it is given, as the pick counts on a replica later. Safe for
// concurrent use.
type Lease struct {
	gate   *Gate
	set    *set
	model  *catalog.Model
	at     time.Time
	waited time.Duration
	needs
	takes    int64               // how many slots it takes at first: all of a replica's if it is to have it for itself
	need     float64             // how many of a replica's slots it was let go with
	load     float64             // of the replica where it was given, with it
	question question            // to which the answer was that it may go
	closed   []*catalog.Endpoint // that the band leaves to others
	engine   *int                // the band's priority in engines
	name     string              // the band's

	front  *front // of the set, when it was given
	band   int
	end    time.Time
	output int64

	begun, over note

	mu       sync.Mutex
	replica  *fleet.Replica // where it counts, until the pick does
	released bool
}

// lease counts a request on the replica that has most room: where it goes is for
// the scheduler to say. It returns nil if another request took that room meanwhile.
// It needs the gate's mu.
func (s *set) lease(g *Gate, w *waiter, v view, now time.Time) *Lease {
	if !v.best.Reserve(v.turn, v.reserves(w.slots), w.holds) {
		return nil
	}
	s.pace(w.band, v, now)
	l := g.newLease(s, s.front.Load(), w.model, w.band, w.needs, &v, now, now.Sub(w.since))
	l.name = w.name // its band may be gone since it came
	return l
}

// newLease is the lease of what was reserved on the view's best replica, for a request of
// a band of the front that has waited for so long.
func (g *Gate) newLease(s *set, f *front, m *catalog.Model, band int, n needs, v *view, now time.Time, waited time.Duration) *Lease {
	b := &f.bands[band]
	return &Lease{
		gate: g, set: s, model: m, at: now, waited: waited, needs: n, takes: v.reserves(n.slots),
		need: v.need, load: v.load, question: v.question, closed: v.closed, replica: v.best,
		engine: b.EnginePriority, name: b.Name, front: f, band: band,
	}
}

// Model returns the model to whose replicas the request may go: the one that it waited
// for, as it is now.
func (l *Lease) Model() *catalog.Model { return l.model }

// Band returns the name of the request's band.
func (l *Lease) Band() string { return l.name }

// Waited returns how long the request has waited.
func (l *Lease) Waited() time.Duration { return l.waited }

// Since returns when the request came.
func (l *Lease) Since() time.Time { return l.at.Add(-l.waited) }

// Sequences returns how many slots the request takes, 0 if the lease is nil.
func (l *Lease) Sequences() int64 {
	if l == nil {
		return 0
	}
	return l.slots
}

// Takes returns as how many the request counts on a replica until its answer begins, 0 if the lease
// is nil.
func (l *Lease) Takes() int64 {
	if l == nil {
		return 0
	}
	return l.takes
}

// Alone reports whether the request had asked for a replica that has nothing else, and there
// was one. For a nil Lease it has not.
func (l *Lease) Alone() bool { return l != nil && l.question.alone }

// Tokens returns how many the request is expected to be, 0 if the lease is nil.
func (l *Lease) Tokens() int64 {
	if l == nil {
		return 0
	}
	return l.tokens
}

// Room says how a replica with such a load, in which the request does not count, would
// take it, if target waiting requests fill one. With a nil Lease it is a request of one
// sequence that may wait anywhere.
func (l *Lease) Room(e *catalog.Endpoint, load fleet.Load, target float64) schedule.Room {
	need, holds := 1.0, 0.0
	if l != nil {
		need, holds = l.need, float64(l.holds)
		l.question.trust(&load)
	}
	switch {
	case l != nil && slices.ContainsFunc(l.closed, func(o *catalog.Endpoint) bool { return o.Replica == e.Replica }):
		return schedule.RoomNone
	case l != nil && l.question.alone && load.Total > 0:
		return schedule.RoomNone
	case load.FreeTokens.Known() && float64(load.FreeTokens) < holds && load.Total > 0:
		return schedule.RoomQueue
	case !load.Free.Known() || float64(load.Free) >= min(need, load.Slots.Or(need)):
		return schedule.RoomNow
	case l != nil && (load.QueuedWith(need)/(target*e.Weight) > l.question.ceiling || !l.question.mayQueue(&load, need)):
		return schedule.RoomNone
	}
	return schedule.RoomQueue
}

// EnginePriority returns the priority that engines are to give the request, nil
// if its band has none. A nil Lease has none.
func (l *Lease) EnginePriority() *int {
	if l == nil {
		return nil
	}
	return l.engine
}

// Placed notes that the request counts on the replica that it goes to from now
// on. Called again, it says that it has moved to another. A nil Lease is none.
func (l *Lease) Placed() {
	if l == nil {
		return
	}
	l.mu.Lock()
	l.unreserve()
	l.mu.Unlock()
	// It has counted twice for a moment, or still on the one that it left: a request that
	// was found to have no room in this moment may have some.
	if l.gate.waiting.Load() > 0 {
		l.gate.note(&note{kind: noteFreed, set: l.set})
	}
}

func (l *Lease) unreserve() {
	if l.replica != nil {
		l.replica.Unreserve(l.takes, l.holds)
		l.replica = nil
	}
}

// Reserved returns the replica on which the request counts until it is placed, nil if it
// is or the lease is nil, and as how many.
func (l *Lease) Reserved() (r *fleet.Replica, sequences int64) {
	if l == nil {
		return nil, 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.replica, l.takes
}

// Release gives the right back, after the request counts on no replica any more:
// another one may go. output is how many tokens it got, 0 if nobody knows, below 0 if
// it got no answer: then nothing is learnt from it. Further calls do nothing, as does
// a nil Lease.
func (l *Lease) Release(output int64) {
	if l == nil {
		return
	}
	l.mu.Lock()
	done := l.released
	l.released = true
	l.unreserve()
	l.mu.Unlock()
	if done {
		return
	}
	g := l.gate
	l.end, l.output = g.now(), output
	l.over = note{kind: noteEnded, lease: l, set: l.set}
	g.note(&l.over)
}

// ended learns from a request that is over. It needs mu.
func (s *set) ended(l *Lease) {
	s.leases--
	if c := &s.busy; !l.at.After(c.since) {
		c.left--
	}
	if l.front == s.front.Load() {
		s.running[l.band] -= l.slots
	}
	if l.output >= 0 {
		if l.front == s.front.Load() { // its band is still the same
			s.drained[l.band].add(l.end, l.tokens)
		}
		// Where others were before it, it has waited in the engine for as many turns.
		turns := 1.0
		if s.each > 0 {
			turns = max(1, l.load/s.each)
		}
		s.held.add(max(0, l.end.Sub(l.at).Seconds())/turns, recent)
		s.size.add(float64(l.holds)/float64(l.slots), recent)
	}
	if l.output > 0 {
		s.output.add(float64(l.output)/float64(l.slots), recent)
		s.outputLimit.Store(int64(2*s.output.value) + 1)
	}
}

// recent is how many requests the averages look back.
const recent = 64
