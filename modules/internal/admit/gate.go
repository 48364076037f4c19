package admit

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/internal/fleet"
)

// Request is what the gate knows of a request.
type Request struct {
	// Model is the one whose replicas it is to go to.
	Model *catalog.Model
	// Band is the name of its band; one that does not exist is [DefaultBand], or
	// the lowest.
	Band string
	// Tenant is who takes turns with others in the band; Weight is how much of it
	// he gets beside them, 1 is normal, at most 0 is 1.
	Tenant string
	Weight float64
	// Prompt and Output are its tokens: estimates, or what it allows.
	Prompt, Output int64
	// Holds says that a replica keeps them in its KV cache until it ends.
	Holds bool
	// Least is how many tokens of prompt and output a replica must be able to keep at once,
	// or the request can never run; 0 means that nobody knows.
	Least int64
	// Sequences is how many the engine makes of it, each of which takes a slot: the
	// choices, or the prompts of a list. 0 is 1.
	Sequences int64
	// Alone says that it goes only to a replica that has nothing else, as far as the gateway
	// knows, which gets nothing else until the request is placed.
	Alone bool
	// Bytes is the length of its body.
	Bytes int64
	// Waited is how long it has waited already, for another model or in an earlier turn.
	Waited time.Duration
	// Fallbacks are the models that may serve it instead. While one of these has a replica
	// that takes work, the request is refused with [ReasonNoReplica] instead of queued if
	// all replicas of its model are full, and after ReplicaWait if there is none.
	Fallbacks []*catalog.Model
	// Deadline is how long it cares to wait; 0 means the band's.
	Deadline time.Duration
}

// Gate lets requests through. Safe for concurrent use.
type Gate struct {
	now func() time.Time
	// Refused is called when a request is refused. Nil means nobody cares. It must be set
	// before the first request and must not call the gate.
	Refused func(model, band string, reason Reason)

	// What follows is for requests that nobody stands before: they take no lock.
	quick   sync.Map     // *catalog.Model: *set
	waiting atomic.Int64 // how many wait
	notes   atomic.Pointer[note]
	noted   atomic.Int64

	mu     sync.Mutex // by lock and unlock
	bands  []Band
	top    Band // what holds for a turn of the highest that a lower one gets
	shut   bool // while the queues are made anew
	sets   map[string]*set
	known  int             // how many are in quick
	latest map[string]*set // by model, the one it had last
	active []*set          // those with requests that wait
	rounds uint64          // of dispatch
	walks  uint64          // through neighbours
	holds  map[*fleet.Replica]*hold
	models map[string]*queue // those with requests that wait
	seq    uint64
	timer  *time.Timer
	due    time.Time // when the timer fires; zero if it is not set
}

// queue is what waits for one model.
type queue struct {
	bands []depth
	n     int
	bytes int64
}

// depth is what waits in one of its bands, in the order of arrival.
type depth struct {
	list          list
	crowd         crowd
	tokens, bytes int64
}

// needs is what a request takes.
type needs struct {
	slots  int64 // of a replica
	tokens int64 // of its tenant's share
	holds  int64 // how many of these a KV cache holds
}

// needs returns what a request takes. It needs no lock.
func (s *set) needs(r *Request) needs {
	n := needs{slots: max(1, r.Sequences)}
	n.tokens = r.Prompt + s.expect(r.Output, n.slots)
	if r.Holds {
		n.holds = n.tokens
	}
	return n
}

// waiter is a request that waits. It is under the gate's mu, but for its goroutine, which
// reads deadline once it is set, ready, and lease and err after ready is closed or after
// leave.
type waiter struct {
	model  *catalog.Model
	name   string // of its band
	band   int    // its own
	tenant string
	weight float64
	needs
	least     int64         // tokens that a replica must be able to hold
	asked     time.Duration // how long it cares to wait, 0 if it does not say
	bytes     int64
	seq       uint64
	since     time.Time
	deadline  time.Time
	byTTL     bool // the deadline is the queue's, not the request's
	fallbacks []*catalog.Model

	set   *set
	lane  *lane
	flow  *flow
	share *share
	hold  *hold // of a replica, for it; nil if there is none
	alone bool  // it goes only to an idle replica

	inFlow, inAge, inBand, inShare link

	ready chan struct{} // closed when lease or err is set
	lease *Lease
	err   error
}

// NewGate returns a gate with the shipped bands. now is the clock; nil means
// time.Now.
func NewGate(now func() time.Time) *Gate {
	if now == nil {
		now = time.Now
	}
	g := &Gate{
		now: now, sets: make(map[string]*set),
		latest: make(map[string]*set), models: make(map[string]*queue), holds: make(map[*fleet.Replica]*hold),
	}
	bands, _ := CheckBands(Bands())
	g.adopt(bands)
	return g
}

// Acquire waits until the request may go, and returns the right to: the caller
// must Release it, once, however the request ends. It returns a [RejectedError] if
// the request may not go, which is [context.Canceled] as well if ctx ended first.
func (g *Gate) Acquire(ctx context.Context, r *Request) (*Lease, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if lease := g.pass(r, g.now()); lease != nil {
		return lease, nil
	}
	g.lock()
	lease, w, err := g.enter(r, g.now())
	g.unlock()
	if w == nil {
		return lease, err
	}
	expire := time.NewTimer(w.deadline.Sub(g.now()))
	defer expire.Stop()
	select {
	case <-w.ready:
	case <-expire.C:
		g.leave(w, ReasonTTL)
	case <-ctx.Done():
		g.leave(w, ReasonGone)
	}
	if w.err != nil {
		return nil, w.err
	}
	if ctx.Err() != nil { // it went in the same moment
		w.lease.Release(-1)
		g.lock()
		defer g.unlock()
		return nil, g.refuse(w, ReasonGone, 0)
	}
	return w.lease, nil
}

// enter lets a request through, refuses it, or makes it wait. It needs mu.
func (g *Gate) enter(r *Request, now time.Time) (*Lease, *waiter, error) {
	w := g.newWaiter(r, now)
	s := w.set
	for {
		p := g.judge(w, now)
		switch {
		case p.refused != "":
			return nil, nil, g.refuse(w, p.refused, p.wait)
		case p.reason == "":
			lease := s.lease(g, w, p.view, now)
			if lease == nil {
				continue // another took that room meanwhile
			}
			s.arrive(w.band, w.slots, w.holds, now)
			s.went(w.band, w.needs)
			g.dispatch(now, g.around(s)) // lower bands have less to leave free
			return lease, nil, nil
		}
		g.makeRoom(w)
		s.arrive(w.band, w.slots, w.holds, now)
		w.ready = make(chan struct{})
		g.seq++
		w.seq = g.seq
		g.enqueue(w, false, now)
		// Only now do others see that one waits, and leave notes of what they free; and with
		// it lower bands may have less to leave free.
		g.dispatch(now, g.around(s))
		return nil, w, nil
	}
}

// enqueue queues a request, aside if others may pass it. It needs mu.
func (g *Gate) enqueue(w *waiter, aside bool, now time.Time) {
	s := w.set
	if s.waiting == 0 {
		g.active = append(g.active, s)
		s.busy = busyPeriod{since: now, before: s.leases, left: s.leases}
	}
	s.waiting++
	g.waiting.Add(1)
	w.inFlow.w, w.inAge.w, w.inBand.w, w.inShare.w = w, w, w, w
	l := &s.lanes[w.band]
	if aside {
		l = l.asides()
	}
	l.push(w)
	s.standing[w.band] += w.slots
	s.mark(w.band)
	s.ages[w.band].add(&w.inAge)
	q := g.models[w.model.Name]
	if q == nil {
		q = &queue{bands: make([]depth, len(g.bands))}
		g.models[w.model.Name] = q
	}
	q.count(w, 1)
	q.bands[w.band].list.add(&w.inBand)
	q.bands[w.band].crowd.add(w)
}

// count counts a request in, or out with n below 0.
func (q *queue) count(w *waiter, n int64) {
	d := &q.bands[w.band]
	q.n += int(n)
	q.bytes, d.bytes, d.tokens = q.bytes+n*w.bytes, d.bytes+n*w.bytes, d.tokens+n*w.tokens
}

// dequeue takes a request out of the queue, charged to its tenant if it goes. It
// needs mu.
func (g *Gate) dequeue(w *waiter, goes bool, now time.Time) {
	s := w.set
	if w.lane.head() == w && w.lane.of == nil {
		s.tags[w.band].stuck = time.Time{}
	}
	switch {
	case w.hold == nil:
	case goes:
		g.unhold(w)
	default:
		g.fail(w, now)
	}
	if goes {
		w.lane.serve(w)
	} else {
		w.lane.remove(w)
	}
	s.standing[w.band] -= w.slots
	s.mark(w.band)
	s.ages[w.band].remove(&w.inAge)
	g.waiting.Add(-1)
	if s.waiting--; s.waiting == 0 {
		g.active = slices.DeleteFunc(g.active, func(o *set) bool { return o == s })
		s.busy = busyPeriod{}
	}
	q := g.models[w.model.Name]
	q.count(w, -1)
	q.bands[w.band].list.remove(&w.inBand)
	q.bands[w.band].crowd.remove(w)
	if q.n == 0 {
		delete(g.models, w.model.Name)
	}
}

// leave ends the wait of a request whose time is over, unless it was let through
// or refused in the same moment.
func (g *Gate) leave(w *waiter, reason Reason) {
	g.lock()
	defer g.unlock()
	if w.lease != nil || w.err != nil {
		return
	}
	now := g.now()
	switch v := w.set.look(now, question{}); {
	case reason == ReasonGone:
	case v.ready+v.full == 0:
		reason = ReasonNoReplica
	case !w.byTTL:
		reason = ReasonDeadline
	}
	g.dequeue(w, false, now)
	w.err = g.refuse(w, reason, 0)
	g.dispatch(now, g.around(w.set))
}

// band returns the index of a band. It needs mu.
func (g *Gate) band(name string) int { return bandOf(g.bands, name) }

func bandOf(bands []Band, name string) int {
	for _, want := range [...]string{name, DefaultBand} {
		for i := range bands {
			if bands[i].Name == want {
				return i
			}
		}
	}
	return len(bands) - 1
}
