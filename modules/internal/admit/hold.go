package admit

import (
	"slices"
	"time"

	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/internal/fleet"
	"github.com/llmgw/llmgw/modules/schedule"
)

// hold keeps a replica for a request, whose turn it is and which finds no room: others take
// what is freed there again and again, since they need less, or since their model lets
// engines be fuller. Only requests of higher bands, and those whose turn is before its, go
// there meanwhile. It may wait for what never comes: so a hold ends after a while, and the
// replica rests for nine times as long before it is kept for anyone again.
type hold struct {
	replica *fleet.Replica
	w       *waiter // for whom it is kept; nil while it rests
	start   float64 // where its turn is among those of other sets, see [tags]
	from    time.Time
	until   time.Time // when it ends, or has rested
}

// kept is a replica of a set that is kept for one request.
type kept struct {
	endpoint *catalog.Endpoint
	hold     *hold
}

const (
	// heldFor is for how many times as long as requests take a replica is kept at most: of
	// those that run there hardly one runs for longer. What waits in it comes on top, in as
	// many turns, but for no more than maxQueues.
	heldFor   = 4
	maxQueues = 8
)

// against reports whether a request, as one of a band, does not go to the replica. Who is
// before the holder in its lane does; of those that others pass, the holder alone.
func (h *hold) against(w *waiter, band int, now time.Time) bool {
	c := h.w
	switch {
	case c == nil || c == w || !now.Before(h.until):
		return false
	case band != c.band:
		return band > c.band
	case w.set == c.set:
		return w.lane != c.lane || w.lane.of != nil
	default:
		return w.set.tags[band].start >= h.start
	}
}

// holder returns the request of a lane for which a replica is kept, or nil.
func (s *set) holder(l *lane) *waiter {
	for _, k := range s.kept {
		if w := k.hold.w; w != nil && w.lane == l {
			return w
		}
	}
	return nil
}

// claim keeps a replica for a request that cannot go for this reason, the first of its lane,
// if one neither rests nor is kept for a request before it. There is no need to if nobody
// could take what it waits for. It returns whether one is kept from now on. It needs mu.
func (g *Gate) claim(w *waiter, reason string, now time.Time) bool {
	s, aside := w.set, w.lane.of != nil
	switch {
	case reason != WaitSaturated && reason != WaitHeadroom && reason != WaitTokens:
		return false
	case now.Before(*w.rest()), aside && w.patient(now), s.holder(w.lane) != nil:
		return false
	case !aside && len(s.neighbours()) == 0: // those behind it need no less
		return false
	case w.slots > 1 && s.tags[w.band].calm.Sub(now) > s.patience() && s.yields(w.band, now): // of no use yet, see urgent
		return false
	}
	var best *catalog.Endpoint
	var least, turns float64
	for _, e := range s.endpoints {
		l := e.Replica.Load(now, e.Slots)
		if l.State != schedule.Ready || !e.Replica.TakesMany(now, w.slots) || l.Tokens.Known() && float64(l.Tokens) < float64(w.holds) {
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
			best, least, turns = e, full, min(max(1, queue), maxQueues)
		}
	}
	if best == nil {
		return false
	}
	if h := g.holds[best.Replica]; h != nil { // whose turn is after w's
		g.unhold(h.w)
	}
	h := &hold{
		replica: best.Replica, w: w, start: s.tags[w.band].start,
		from: now, until: now.Add(time.Duration(heldFor * turns * float64(s.patience()))),
	}
	w.hold, g.holds[h.replica] = h, h
	s.keep(h)
	for _, n := range s.neighbours() {
		n.set.keep(h)
	}
	return true
}

// yields reports whether a band leaves slots free for higher ones.
func (s *set) yields(band int, now time.Time) bool {
	slots, _, _ := s.headroom(band, now)
	return slots > 0
}

// keep notes a hold if the set has the replica.
func (s *set) keep(h *hold) {
	for _, e := range s.endpoints {
		if e.Replica == h.replica {
			s.kept = append(s.kept, kept{e, h})
		}
	}
}

// rest is until when no replica is kept for those like w.
func (w *waiter) rest() *time.Time {
	t := &w.set.tags[w.band]
	if w.lane.of != nil {
		return &t.asideRest
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

// fail ends the hold of a request for which it was of no use. Those like it rest for longer
// than the replica, so that others get it first. It needs mu.
func (g *Gate) fail(w *waiter, now time.Time) {
	h := w.hold
	g.unhold(w)
	held := now.Sub(h.from)
	h.until = now.Add((agingShare - 1) * held)
	g.holds[h.replica] = h
	*w.rest() = now.Add(agingShare * held)
}

// expire ends the holds whose time is over. It needs mu.
func (g *Gate) expire(now time.Time) {
	for r, h := range g.holds {
		switch {
		case now.Before(h.until):
		case h.w != nil:
			w := h.w
			if g.fail(w, now); w.lane.of != nil {
				w.lane.skip(w)
			}
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
// when a replica has been kept for it for as long as requests take, and once in ten times as
// long in a band.
func (w *waiter) urgent(now time.Time) bool {
	return w.slots > 1 && w.hold != nil && now.Sub(w.hold.from) > w.set.patience() && !now.Before(w.set.tags[w.band].calm)
}

// large reports whether a request waits for this reason since it takes more than others do:
// many slots, which replicas may have refused to so large a one, or much room in a KV cache, which is an eighth of one, and twice as much as
// others take or what was not to be had for long. Others may go before it, then.
func (w *waiter) large(reason string) bool {
	switch reason {
	case WaitSaturated, WaitFull, WaitReplica:
		return w.slots > 1
	case WaitHeadroom, WaitTokens:
		s, holds := w.set, float64(w.holds)
		never := s.tags[w.band].never
		return w.slots > 1 || s.much(w) && (s.size.known && holds > 2*s.size.value || never > 0 && holds >= never)
	}
	return false
}

// much reports whether a request holds much of a KV cache.
func (s *set) much(w *waiter) bool { return float64(w.holds) > s.room/8 }

// waits notes that the head of a lane cannot go for this reason, and whether what it needs was
// not to be had for long.
func (s *set) waits(w *waiter, reason string, now time.Time) {
	t := &s.tags[w.band]
	switch {
	case t.stuck.IsZero():
		t.stuck = now
	case now.Sub(t.stuck) > heldFor*s.patience() && s.much(w) && reason != WaitSaturated && (t.never == 0 || float64(w.holds) < t.never):
		t.never = float64(w.holds)
	}
}
