package admit

import "container/heap"

// lane holds the waiting requests of one band that may go to the same replicas.
// Tenants take turns by tokens: start-time fair queueing (Goyal et al., SIGCOMM
// 1996), in which each tenant has a clock that its tokens, divided by its weight,
// move on, and the one whose clock is furthest behind goes next. Who comes back
// after a pause begins where the lane is now: idling earns nothing. So neither
// many requests nor long ones let one tenant own the band, and one request of
// another tenant never waits for a burst. Push and pop are O(log tenants).
type lane struct {
	flows  map[string]*flow
	turn   heaped[*flow] // the tenants that wait, the one that goes next first
	clock  float64       // the virtual time, in tokens
	weight float64       // of the tenants that wait, together
	aside  *lane         // of those that others pass, see setAside; nil if there never were any
	of     *lane         // whose aside this is, nil if it is none's
	n      int           // how many wait, without those set aside
	tokens int64         // of these
	limit  int           // how many tenants it may remember before it forgets some
}

// flow is one tenant in a lane. While others wait there it is remembered for as long as
// it is ahead of the lane's clock.
type flow struct {
	tenant string
	next   float64 // where its next request begins, in tokens by the tenant's weight
	weight float64 // while it waits: of the request that it began to wait with
	list   list    // its requests by arrival
	tokens int64   // of these
	index  int     // in turn, -1 if it has none
	seq    uint64  // of its oldest request: ties go by arrival
}

func (f *flow) at() *int { return &f.index }

func (f *flow) before(o *flow) bool {
	if f.next != o.next {
		return f.next < o.next
	}
	return f.seq < o.seq
}

// push adds a request to its tenant's, behind those that came before it.
func (l *lane) push(w *waiter) {
	f := l.flow(w.tenant)
	w.lane, w.flow = l, f
	f.list.add(&w.inFlow)
	l.n++
	f.tokens += w.tokens
	l.tokens += w.tokens
	f.seq = f.list.first.w.seq
	if f.index >= 0 {
		heap.Fix(&l.turn, f.index) // its oldest request may be this one
		return
	}
	f.next, f.weight = max(f.next, l.clock), w.weight
	l.weight += f.weight
	heap.Push(&l.turn, f)
}

// flow returns the tenant's.
func (l *lane) flow(tenant string) *flow {
	f := l.flows[tenant]
	if f == nil {
		l.forget()
		if l.flows == nil {
			l.flows = make(map[string]*flow)
		}
		f = &flow{tenant: tenant, index: -1}
		l.flows[tenant] = f
	}
	return f
}

// setAside lets others of the band pass a request that waits: those that are set aside take
// turns among themselves. When it goes its tenant is charged for it here, too, if others wait.
func (l *lane) setAside(w *waiter) {
	l.remove(w)
	l.asides().push(w)
}

func (l *lane) asides() *lane {
	if l.aside == nil {
		l.aside = &lane{of: l}
	}
	return l.aside
}

// lead is how far the tenant of a request is ahead of the clock in its lane, and in that from
// which it was set aside.
type lead struct {
	aside        bool
	own, parents float64
}

func (w *waiter) lead() lead {
	d := lead{own: w.lane.ahead(w.tenant), aside: w.lane.of != nil}
	if d.aside {
		d.parents = w.lane.of.ahead(w.tenant)
	}
	return d
}

// resume gives the tenant of a request the lead that it had where the queues were before.
func (w *waiter) resume(d lead) {
	w.lane.atLeast(w.tenant, d.own)
	if d.aside {
		w.lane.of.atLeast(w.tenant, d.parents)
	}
}

func (l *lane) ahead(tenant string) float64 {
	if f := l.flows[tenant]; f != nil {
		return max(0, f.next-l.clock)
	}
	return 0
}

// atLeast makes a tenant so far ahead of the clock, unless it is further, or nobody waits.
func (l *lane) atLeast(tenant string, ahead float64) {
	if f := l.flows[tenant]; f != nil || ahead > 0 {
		l.charge(tenant, max(0, ahead-l.ahead(tenant)))
	}
}

// head returns the request that goes next, of those that are not set aside, or nil.
func (l *lane) head() *waiter {
	if len(l.turn) == 0 {
		return nil
	}
	return l.turn[0].list.first.w
}

// aFewAside is how many of those that are set aside are looked at.
const aFewAside = 4

// passed returns a few of those that are set aside, each of another tenant, the one that
// goes next first.
func (l *lane) passed() (all []*waiter) {
	if l.aside == nil {
		return nil
	}
	for _, f := range l.aside.turn[:min(aFewAside, len(l.aside.turn))] {
		all = append(all, f.list.first.w)
	}
	return all
}

// all returns how many wait.
func (l *lane) all() int {
	if l.aside == nil {
		return l.n
	}
	return l.n + l.aside.n
}

// turnOf reports whether it is the turn of one that is set aside: its tenant's is not after
// that of the head.
func (l *lane) turnOf(aside *waiter) bool {
	f, head := l.flows[aside.tenant], l.head()
	return head == nil || f == nil || f.next <= head.flow.next
}

// skip lets the other tenants have their turns before w is the next again.
func (l *lane) skip(w *waiter) {
	w.flow.next += float64(max(1, w.tokens)) / w.weight
	heap.Fix(&l.turn, w.flow.index)
}

// serve removes a request because it goes, and charges its tenant.
//
// The clock is where the request began, and moves on with what goes by the share of each
// that waits, as in the ideal that fair queueing approximates. If it stood still until
// the next began, as in the paper, tenants that come for the first time would begin before
// one that has had its turn for as long as there are new ones. It is never further than
// one request ahead of whoever is next.
func (l *lane) serve(w *waiter) {
	f, tokens := w.flow, float64(max(1, w.tokens))
	l.clock = max(l.clock, f.next)
	moved := l.clock + tokens/l.weight
	f.next += tokens / w.weight
	l.remove(w)
	if len(l.turn) > 0 {
		l.clock = max(l.clock, min(moved, l.turn[0].next+tokens))
	}
	if l.of != nil {
		l.of.charge(w.tenant, tokens/w.weight)
	}
}

// charge moves a tenant's clock on for what it had beside its turns.
func (l *lane) charge(tenant string, tokens float64) {
	if len(l.turn) == 0 {
		return
	}
	f := l.flow(tenant)
	f.next = max(f.next, l.clock) + tokens
	if f.index >= 0 {
		heap.Fix(&l.turn, f.index)
	}
}

// remove takes a request out.
func (l *lane) remove(w *waiter) {
	f := w.flow
	l.n--
	l.tokens -= w.tokens
	w.lane, w.flow = nil, nil
	f.list.remove(&w.inFlow)
	f.tokens -= w.tokens
	if f.list.first != nil {
		f.seq = f.list.first.w.seq
		heap.Fix(&l.turn, f.index)
		return
	}
	heap.Remove(&l.turn, f.index)
	l.weight -= f.weight
	switch {
	case len(l.turn) == 0: // nobody is behind anybody
		clear(l.flows)
		l.clock, l.weight, l.limit = 0, 0, 0
	case f.next <= l.clock:
		delete(l.flows, f.tenant)
	}
}

const (
	// minIdle is how many tenants without a request a lane remembers before it
	// looks for those that it may forget.
	minIdle = 1024
	// maxIdle is how many it remembers at most: with names that clients make up there
	// is no end of them.
	maxIdle = 1 << 16
)

// forget drops tenants that the lane's clock has caught up with, or all without a
// request if there are too many. It looks at all of them, so seldom that it costs
// each new one next to nothing.
func (l *lane) forget() {
	if len(l.flows) < max(l.limit, minIdle) {
		return
	}
	many := len(l.flows)-len(l.turn) >= maxIdle
	for tenant, f := range l.flows {
		if f.index < 0 && (many || f.next <= l.clock) {
			delete(l.flows, tenant)
		}
	}
	l.limit = min(2*len(l.flows), len(l.turn)+maxIdle)
}

// before estimates how many tokens go before a new request of the tenant: what it
// has waiting itself, and of each other tenant as much again, whatever its weight,
// but no more than there is.
func (l *lane) before(tenant string, tokens int64) int64 {
	own, others := int64(0), int64(len(l.turn))
	if f := l.flows[tenant]; f != nil && f.list.n > 0 {
		own, others = f.tokens, others-1
	}
	return own + min(l.tokens-own, others*(own+tokens))
}

// list is a doubly linked list of requests through a link that each of them has,
// so that being in several lists costs no memory of its own.
type list struct {
	first, last *link
	n           int
}

type link struct {
	w          *waiter
	prev, next *link
}

// add adds a request behind those that came before it: at the end, or if it has waited
// already, in another queue, at its place, for which it looks from the beginning: few have,
// and those came long ago.
func (l *list) add(k *link) {
	l.n++
	k.prev, k.next = l.last, l.behind(k)
	if k.next != nil {
		k.prev, k.next.prev = k.next.prev, k
	} else {
		l.last = k
	}
	if k.prev != nil {
		k.prev.next = k
	} else {
		l.first = k
	}
}

// behind returns the first that came after k, nil if none did.
func (l *list) behind(k *link) *link {
	if l.last == nil || !l.last.w.since.After(k.w.since) {
		return nil
	}
	next := l.first
	for !next.w.since.After(k.w.since) {
		next = next.next
	}
	return next
}

func (l *list) remove(k *link) {
	l.n--
	if k.prev != nil {
		k.prev.next = k.next
	} else {
		l.first = k.next
	}
	if k.next != nil {
		k.next.prev = k.prev
	} else {
		l.last = k.prev
	}
	k.prev, k.next = nil, nil
}
