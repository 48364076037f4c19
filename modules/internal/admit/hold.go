package admit

import (
	"slices"
	"time"

	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/internal/fleet"
	"github.com/llmgw/llmgw/modules/schedule"
)

// hold keeps a replica for one request, whose turn it is and which finds no room: others
// take what is freed there again and again, since they need less, or since their model
// lets engines be fuller. Only requests of higher bands, and those whose turn is before its,
// go there meanwhile. It may wait for what never comes: so a hold ends after a while, and
// the replica rests for nine times as long before it is kept for anyone again.
type hold struct {
	replica *fleet.Replica
	w       *waiter // for whom it is kept; nil while it rests
	from    time.Time
	until   time.Time // when it ends, or has rested
}

// kept is a replica of a set that is kept for one request.
type kept struct {
	endpoint *catalog.Endpoint
	hold     *hold
}

// rest is what became of the holds of a band's requests in a set.
type rest struct {
	failed int       // how many in a row were of no use
	until  time.Time // when there may be another
}

// heldFor is for how many times as long as requests take a replica is kept at most: of
// those that run there hardly one runs for longer. For many slots it is as long as they
// take: half of them end in less, and half of the slots is what it takes.
const heldFor = 4

// maxFailed is how many holds in a row make the time until the next one longer.
const maxFailed = 6

// against reports whether a request, as one of a band, does not go to the replica.
func (h *hold) against(w *waiter, band int, now time.Time) bool {
	c := h.w
	switch {
	case c == nil || c == w || !now.Before(h.until):
		return false
	case band != c.band:
		return band > c.band
	default:
		return !w.set.precedes(c.set, band)
	}
}

// claim keeps a replica for a request that cannot go for this reason, if there is one that
// neither rests nor is kept for one before it, and if others could take what it waits for. It returns whether it does. It needs mu.
func (g *Gate) claim(w *waiter, reason string, now time.Time) bool {
	s, aside := w.set, w.lane.of != nil
	switch {
	case w.hold != nil || reason != WaitSaturated && reason != WaitHeadroom && reason != WaitTokens:
		return false
	case now.Before(w.rest().until), aside && w.patient(now):
		return false
	case !aside && len(s.neighbours()) == 0: // those behind it need no less
		return false
	}
	var best *catalog.Endpoint
	var least, turns float64
	for _, e := range s.endpoints {
		l := e.Replica.Load(now, e.Slots)
		if l.State != schedule.Ready || l.Tokens.Known() && float64(l.Tokens) < float64(w.holds) {
			continue
		}
		if h := g.holds[e.Replica]; h != nil && (h.w == nil || h.against(w, w.band, now)) {
			continue
		}
		queue := l.Total / max(1, l.Slots.Or(l.Total))
		full := queue
		if l.Tokens.Known() {
			full = max(full, 1-float64(l.FreeTokens)/float64(l.Tokens))
		}
		if best == nil || full < least {
			best, least, turns = e, full, max(1, queue)
		}
	}
	if best == nil {
		return false
	}
	if w.slots == 1 {
		turns *= heldFor
	}
	if h := g.holds[best.Replica]; h != nil { // whose turn is after w's
		g.unhold(h.w)
	}
	h := &hold{replica: best.Replica, w: w, from: now, until: now.Add(time.Duration(turns * float64(s.patience())))}
	w.hold, g.holds[h.replica] = h, h
	s.keep(h)
	for _, n := range s.neighbours() {
		n.set.keep(h)
	}
	return true
}

// keep notes a hold if the set has the replica.
func (s *set) keep(h *hold) {
	for _, e := range s.endpoints {
		if e.Replica == h.replica {
			s.kept = append(s.kept, kept{e, h})
		}
	}
}

// rest returns what became of the holds of those like w.
func (w *waiter) rest() *rest {
	t := &w.set.tags[w.band]
	if w.lane.of != nil {
		return &t.aside
	}
	return &t.rest
}

// unhold ends the hold of a request. It needs mu.
func (g *Gate) unhold(w *waiter) {
	h := w.hold
	w.hold, h.w = nil, nil
	delete(g.holds, h.replica)
	is := func(k kept) bool { return k.hold == h }
	w.set.kept = slices.DeleteFunc(w.set.kept, is)
	for _, n := range w.set.neighbours() {
		n.set.kept = slices.DeleteFunc(n.set.kept, is)
	}
}

// fail ends the hold of a request for which it was of no use. It needs mu.
func (g *Gate) fail(w *waiter, now time.Time) {
	h := w.hold
	g.unhold(w)
	pause := (agingShare - 1) * now.Sub(h.from)
	h.until = now.Add(pause)
	g.holds[h.replica] = h
	r := w.rest()
	r.until = now.Add(pause << r.failed)
	r.failed = min(r.failed+1, maxFailed)
	if w.lane.of != nil {
		w.lane.skip(w)
	}
}

// expire ends the holds whose time is over. It needs mu.
func (g *Gate) expire(now time.Time) {
	for r, h := range g.holds {
		switch {
		case now.Before(h.until):
		case h.w != nil:
			g.fail(h.w, now)
		default:
			delete(g.holds, r)
		}
	}
}

// closed returns the replicas that are kept for others than w, as one of a band.
func (s *set) closed(w *waiter, band int, now time.Time) (closed []*catalog.Endpoint) {
	for _, k := range s.kept {
		if k.hold.against(w, band, now) {
			closed = append(closed, k.endpoint)
		}
	}
	return closed
}

// patience is as long as requests take of late, and a second at least, or if nobody knows.
func (s *set) patience() time.Duration {
	return time.Duration(max(1, min(s.held.value, longest.Seconds())) * float64(time.Second))
}

// patience is the set's, or less if that is much of the time that the request has.
func (w *waiter) patience() time.Duration {
	d := w.set.patience()
	if !w.deadline.IsZero() {
		d = min(d, w.deadline.Sub(w.since)/4)
	}
	return d
}

// patient reports whether a request has waited for no longer than that. Until then it
// insists on all the slots that it takes. Where higher bands have some of them all the
// time that never comes: so it goes with half of them then, and what it lacks waits in the
// engine.
func (w *waiter) patient(now time.Time) bool { return now.Sub(w.since) <= w.patience() }

// urgent reports whether a request of many slots takes what is left free for higher bands:
// while a replica is kept for it, and once it has waited for ten times as long as requests
// take, or half of its time.
func (w *waiter) urgent(now time.Time) bool {
	return w.slots > 1 && w.hold != nil && now.Sub(w.since) > min(agingShare*w.set.patience(), w.deadline.Sub(w.since)/2)
}

// large reports whether a request waits for this reason since it takes more than others do:
// many slots, or much room in a KV cache, which is an eighth of one, and twice as much as
// others take or what was not to be had for long. Others may go before it, then.
func (w *waiter) large(reason string, now time.Time) bool {
	s := w.set
	switch reason {
	case WaitSaturated:
		return w.slots > 1
	case WaitHeadroom, WaitTokens:
		if holds := float64(w.holds); w.slots == 1 {
			t := &s.tags[w.band]
			if holds > s.room/8 && !t.stuck.IsZero() && now.Sub(t.stuck) > heldFor*s.patience() && (t.never == 0 || holds < t.never) {
				t.never = holds
			}
			return holds > s.room/8 && (s.size.known && holds > 2*s.size.value || t.never > 0 && holds >= t.never)
		}
		return true
	}
	return false
}
