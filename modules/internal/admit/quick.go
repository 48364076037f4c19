package admit

import (
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/llmgw/llmgw/modules/internal/catalog"
)

// Most requests find room and nobody before them. For these the gate takes no lock:
// one whose holder the system has put aside would make all others wait. They look
// at what is atomic, and reserve their room by compare-and-swap; what there is to
// learn of them is noted, and read by whoever has the lock next.

// front is what a set shows of its queues. Another takes its place when the bands
// change.
type front struct {
	bands []Band
	waits atomic.Uint64  // the bands in which requests wait, one bit each; or isShut
	last  []atomic.Int64 // by band, when a request came last, as moment has it, 0 never; to some precision
}

// isShut is the bit that says that all are to take the lock.
const isShut = 1 << 63

// MaxBands is how many bands there may be.
const MaxBands = 63

func newFront(bands []Band, shut bool) *front {
	f := &front{bands: bands, last: make([]atomic.Int64, len(bands))}
	if shut {
		f.waits.Store(isShut)
	}
	return f
}

// started is when the clock of moment began.
var started = time.Now()

// moment returns t in ns, by a clock that nobody sets if t has one.
func moment(t time.Time) int64 { return int64(t.Sub(started)) }

// precise is how precise a front is about when a request came last.
const precise = decay / 100

// arrive notes a request of a band.
func (f *front) arrive(band int, now time.Time) {
	if at, last := moment(now), f.last[band].Load(); last == 0 || at-last > int64(precise) {
		f.last[band].Store(at)
	}
}

// yields reports whether a band leaves headroom, since requests of higher ones have
// come of late.
func (f *front) yields(band int, now time.Time) bool {
	for i := range min(band, len(f.last)) {
		if last := f.last[i].Load(); last != 0 && moment(now)-last <= int64(decay+precise) {
			return true
		}
	}
	return false
}

// mark notes whether requests wait in a band. It needs mu.
func (s *set) mark(band int) {
	if f := s.front.Load(); s.lanes[band].all() > 0 {
		f.waits.Or(1 << band)
	} else {
		f.waits.And(^uint64(1 << band))
	}
}

// maxRaces is how often a request looks again because others came meanwhile, before
// it takes the lock.
const maxRaces = 8

// pass lets a request through that nobody stands before, or returns nil.
func (g *Gate) pass(r *Request, now time.Time) *Lease {
	known, ok := g.quick.Load(r.Model)
	if !ok || r.Alone {
		return nil
	}
	s := known.(*set).use(now)
	f := s.front.Load()
	band := bandOf(f.bands, r.Band)
	b := &f.bands[band]
	if b.Ceiling < Unlimited && !s.clear(f, band, now) {
		return nil
	}
	n := s.needs(r)
	q := question{slots: n.slots, tokens: n.holds, ceiling: b.Ceiling, low: b.low}
	fits := func(v *view) bool { return v.judge(b, n.holds, 0, 0) == "" && float64(r.Least) <= v.room }
	for range maxRaces {
		few := s.some()
		v := s.lookAt(few, now, q)
		if !fits(&v) {
			if len(few) == len(s.endpoints) {
				return nil
			}
			if v = s.look(now, q); !fits(&v) {
				return nil
			}
		}
		if v.best.Reserve(v.turn, n.slots, n.holds) {
			if b.Ceiling < Unlimited && !s.clear(f, band, now) { // others have come to stand before it
				v.best.Unreserve(n.slots, n.holds)
				g.note(&note{kind: noteFreed, set: s})
				return nil
			}
			f.arrive(band, now)
			l := g.newLease(s, f, r.Model, band, n, &v, now, r.Waited)
			l.begun = note{kind: noteBegan, lease: l, set: s}
			g.note(&l.begun)
			return l
		}
	}
	return nil
}

// aFew is how many of a set's replicas are looked at first.
const aFew = 8

// some returns a few of the replicas, others each time: while these have room, there
// is no need to look at hundreds.
func (s *set) some() []*catalog.Endpoint {
	n := len(s.endpoints)
	if n <= 2*aFew {
		return s.endpoints
	}
	first := rand.IntN(n - aFew + 1)
	return s.endpoints[first : first+aFew]
}

// clear reports whether nobody waits before a request of a band, and none has come
// of late for which the band leaves headroom.
func (s *set) clear(f *front, band int, now time.Time) bool {
	before := uint64(1)<<(band+1) - 1
	if f.waits.Load()&(before|isShut) != 0 || f.yields(band, now) {
		return false
	}
	for _, n := range s.neighbours() {
		if o := n.set.front.Load(); o.waits.Load()&before != 0 || o.yields(band, now) {
			return false
		}
	}
	return true
}

// note is one of a stack of them.
type note struct {
	kind  noteKind
	set   *set
	lease *Lease
	next  *note
}

type noteKind uint8

const (
	noteBegan noteKind = iota // its lease was given without the lock
	noteEnded                 // its lease ended
	noteFreed                 // the set's replicas have more room than before
)

// maxNoted is how many notes are left for later while nothing waits.
const maxNoted = 64

// note leaves n for whoever has the lock next, who may be the caller.
func (g *Gate) note(n *note) {
	for {
		n.next = g.notes.Load()
		if g.notes.CompareAndSwap(n.next, n) {
			break
		}
	}
	g.noted.Add(1)
	if g.overdue() && g.mu.TryLock() { // else whoever has it looks when he is done
		g.unlock()
	}
}

// overdue reports whether notes have to be read.
func (g *Gate) overdue() bool {
	return g.notes.Load() != nil && (g.waiting.Load() > 0 || g.noted.Load() >= maxNoted)
}

// lock locks mu, with all notes read.
func (g *Gate) lock() {
	g.mu.Lock()
	g.read()
}

// maxTurns bounds how often one goroutine reads what others have left meanwhile. What is
// left after that is read by whoever has the lock next: while some wait, at the next tick.
const maxTurns = 100

// unlock reads the notes, lets go whom they let go, and unlocks mu. Notes that come
// meanwhile are its to read, too: who left them did not wait for the lock.
func (g *Gate) unlock() {
	for range maxTurns {
		g.read()
		g.mu.Unlock()
		if !g.overdue() || !g.mu.TryLock() {
			return
		}
	}
	g.mu.Unlock()
}

// read reads the notes, in the order in which they were left. It needs mu.
func (g *Gate) read() {
	var first *note
	for n := g.notes.Swap(nil); n != nil; { // the last one comes first
		g.noted.Add(-1)
		next := n.next
		n.next = first
		first, n = n, next
	}
	if first == nil {
		return
	}
	now := g.now()
	var freed *set // by those that ended, or that need less left free now
	var seen *set  // whose replicas were looked at
	many := false
	for n := first; n != nil; {
		l, s := n.lease, n.set
		switch {
		case n.kind == noteEnded:
			s.ended(l)
		case n.kind == noteBegan && l.front == s.front.Load():
			if s != seen {
				v := s.look(now, question{})
				s.measure(&v)
				seen = s
			}
			s.arrive(l.band, l.slots, l.holds, l.at)
			s.went(l.band, l.needs)
		case n.kind == noteBegan:
			s.leases++
		}
		many = many || freed != nil && freed != s
		freed = s
		next := n.next
		*n = note{}
		n = next
	}
	if many {
		g.dispatch(now, slices.Clone(g.active))
		return
	}
	g.dispatch(now, g.around(freed))
}
