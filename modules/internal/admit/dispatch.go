package admit

import (
	"cmp"
	"slices"
	"time"

	"github.com/llmgw/llmgw/modules/internal/catalog"
)

// around returns those of a set and of its neighbours, of theirs that wait, and so on, in
// which requests wait: these are the ones that a slot of its replicas may be for, since
// one may wait for what another waits for. It needs mu.
func (g *Gate) around(s *set) (all []*set) {
	g.walks++
	found := func(o *set) {
		if o.walk != g.walks && o.waiting > 0 {
			all = append(all, o)
		}
		o.walk = g.walks
	}
	found(s)
	for _, n := range s.neighbours() {
		found(n.set)
	}
	for i := 0; i < len(all); i++ {
		for _, n := range all[i].neighbours() {
			found(n.set)
		}
	}
	return all
}

// dispatch lets go what may go in these sets, which are its own to order: the highest band
// first, and the sets by turns within a band, see [tags]. It needs mu.
func (g *Gate) dispatch(now time.Time, sets []*set) {
	if len(sets) == 0 {
		return
	}
	var again time.Time
	for more := true; more; { // what stood before others in another set may be gone, or need less left free
		var when time.Time
		more, when = g.round(sets, now)
		again = earlier(again, when)
	}
	g.arm(now, again)
}

// round is dispatch, once. It returns whether requests went that others may have waited
// for. It needs mu.
func (g *Gate) round(sets []*set, now time.Time) (more bool, again time.Time) {
	g.rounds++
	for _, s := range sets {
		for band := len(g.bands) - 1; band > 0; band-- {
			if g.repay(s, band, now) {
				more = more || len(sets) > 1
			}
		}
	}
	for band := range g.bands {
		for went := true; went; {
			went = false
			slices.SortStableFunc(sets, func(a, b *set) int { return cmp.Compare(a.tags[band].start, b.tags[band].start) })
			for _, s := range sets {
				var when time.Time
				went, when = g.next(s, band, now)
				again = earlier(again, when)
				if went {
					more = more || len(sets) > 1
					break // it may be another's turn
				}
			}
		}
	}
	return more, again
}

// earlier returns the earlier of two times, of which zero ones do not count.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// next lets the first request of a band go, if it is its turn, or one that is before it,
// and returns whether one went, and when to look again, if that is a matter of time. It
// needs mu.
func (g *Gate) next(s *set, band int, now time.Time) (went bool, again time.Time) {
	lane := &s.lanes[band]
	for {
		again = earlier(again, s.insist(band, now))
		w := s.head(band, now)
		// What a higher band waits for, this one does not take: no need to look again.
		if w == nil || s.stuck == g.rounds && g.bands[band].Ceiling < Unlimited {
			return false, again
		}
		if aside := lane.passed(); aside != nil && aside != w { // w passes it, unless it can go
			if first, v, reason, _ := g.turn(aside, now); reason == "" && first == aside && g.grant(first, v, now) {
				return true, again
			}
		}
		first, v, reason, when := g.turn(w, now)
		if reason != "" && w.lane == lane && w.large(reason) {
			lane.setAside(w)
			continue
		}
		again = earlier(again, when)
		if reason != "" {
			if len(s.neighbours()) > 0 {
				_, reason, _ = s.mayGo(&g.bands[band], band, w, nil, now)
			}
			if s.waitFor(w, reason, now) {
				s.stuck = g.rounds
			}
			return false, again
		}
		if g.grant(first, v, now) {
			return true, again
		}
	}
}

// head returns the request of a band that goes next, or nil: one that was set aside if there
// is no other, or while these hold up others.
func (s *set) head(band int, now time.Time) *waiter {
	l := &s.lanes[band]
	if w := l.passed(); w != nil && (len(l.turn) == 0 || s.holding(band, now)) {
		return w
	}
	return l.head()
}

// repay lets one of a band go, as one of the highest, whose turn it is although higher ones
// wait, or have what is free left for them: its oldest has waited for too long, and enough
// of these have gone meanwhile. It returns whether one went. It needs mu.
func (g *Gate) repay(s *set, band int, now time.Time) bool {
	oldest, aging := s.ages[band].first, g.bands[band].Aging
	if s.turns[band] < agingShare || oldest == nil || aging == 0 || now.Sub(oldest.w.since) < aging {
		return false
	}
	lane := &s.lanes[band]
	try := func(w *waiter) (reason string) {
		v, reason, _ := s.mayGo(&g.top, 0, w, nil, now)
		if reason == "" && !g.grant(w, v, now) {
			reason = WaitTurn // another took the room meanwhile
		}
		return reason
	}
	if w := lane.passed(); w != nil && try(w) == "" {
		return true
	}
	for w := lane.head(); w != nil; w = lane.head() {
		switch reason := try(w); {
		case reason == "":
			return true
		case !w.large(reason):
			return false
		}
		lane.setAside(w)
	}
	return false
}

// turn returns who goes if w, the first of its band, wants to: itself, or another that is
// before it and may go by now. Otherwise it returns why neither does, and until when if
// that is a matter of time.
//
// What one of a higher band waits for, or one of its own in a set whose turn it is, w does
// not take, unless that one lets others pass. It needs mu.
func (g *Gate) turn(w *waiter, now time.Time) (first *waiter, v view, reason string, again time.Time) {
	return g.turnOf(w, now, 0)
}

// maxHops is how many sets away one is that a request may have to wait for: what a
// neighbour waits for counts, with what that one's neighbours wait for. Beyond that they
// are taken for able to go if there is room, since each step costs as much again.
const maxHops = 1

func (g *Gate) turnOf(w *waiter, now time.Time, hops int) (first *waiter, v view, reason string, again time.Time) {
	s, b, near, own := w.set, &g.bands[w.band], w.set.neighbours(), neighbour{set: w.set, covers: true}
	var closed []*catalog.Endpoint
	if b.Ceiling < Unlimited {
		for band := range w.band + 1 {
			for i := range len(near) + 1 {
				n := own
				if i < len(near) {
					n = near[i]
				}
				other := n.set.head(band, now)
				if other == nil || band == w.band && !n.set.precedes(s, band) {
					continue
				}
				first = other
				if n.set == s { // those before it were looked at by now
					v, reason, again = s.mayGo(&g.bands[band], band, other, closed, now)
				} else if v, reason, again = n.set.mayGo(&g.bands[band], band, other, nil, now); reason == "" && hops < maxHops {
					first, v, reason, again = g.turnOf(other, now, hops+1)
				}
				if reason == "" {
					return first, v, "", again
				}
				if n.set == s && len(closed) > 0 { // what it waits for itself
					_, reason, _ = s.mayGo(&g.bands[band], band, other, nil, now)
				}
				switch {
				case !s.waitFor(other, reason, now):
				case n.covers:
					return nil, v, WaitTurn, again
				default:
					closed = append(closed, n.shared...)
				}
			}
		}
	}
	v, reason, again = s.mayGo(b, w.band, w, closed, now)
	return w, v, reason, again
}

// precedes reports whether it is this set's turn before another's in a band.
func (s *set) precedes(o *set, band int) bool { return s.tags[band].start < o.tags[band].start }

// grant lets a request through. It returns false if there is no room any more. It
// needs mu.
func (g *Gate) grant(w *waiter, v view, now time.Time) bool {
	lease := w.set.lease(g, w, v, now)
	if lease == nil {
		return false
	}
	if w.lane.of != nil {
		w.set.tags[w.band].large.end(now)
	}
	g.dequeue(w, true)
	w.set.went(w.band, w.needs)
	w.lease = lease
	close(w.ready)
	return true
}

// tick is how often replicas are looked at while requests wait: scrapes, the
// clock and other gateways change them, too.
var tick = 50 * time.Millisecond // a variable for tests

// arm sets the timer for the next look, no later than it is set for already. It
// needs mu.
func (g *Gate) arm(now, again time.Time) {
	if len(g.active) == 0 {
		return
	}
	due := now.Add(tick)
	if !again.IsZero() && again.Before(due) {
		due = again
	}
	if !g.due.IsZero() && !due.Before(g.due) {
		return
	}
	g.due = due
	if g.timer == nil {
		g.timer = time.AfterFunc(due.Sub(now), g.look)
		return
	}
	g.timer.Reset(due.Sub(now))
}

// look lets go what may go by now, elsewhere if there is no replica any more.
func (g *Gate) look() {
	g.lock()
	defer g.unlock()
	g.due = time.Time{}
	now := g.now()
	var gone []*waiter
	serves := make(map[*catalog.Model]bool) // whether it has a replica that takes work
	for _, s := range g.active {
		v := s.look(now, question{})
		if v.ready > 0 {
			continue
		}
		for i := range s.ages {
			for k := s.ages[i].first; k != nil; k = k.next {
				if (v.full > 0 || now.Sub(k.w.since) >= k.w.model.Admission.ReplicaWait) && k.w.fallback(serves) != nil {
					gone = append(gone, k.w)
				}
			}
		}
	}
	for _, w := range gone {
		g.displace(w, ReasonNoReplica)
	}
	g.dispatch(now, slices.Clone(g.active))
}
