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
			w := g.owed(s, band, now)
			if w == nil {
				continue
			}
			v, reason, _ := s.mayGo(&g.top, 0, w, nil, now)
			v.headroom, _, _ = s.headroom(band, now) // it is paced as its own band is
			if reason == "" && g.grant(w, v, now) {
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
		w := s.head(band, now)
		// What a higher band waits for, this one does not take: no need to look again.
		if w == nil || s.stuck == g.rounds && g.bands[band].Ceiling < Unlimited {
			return false, again
		}
		if aside := lane.aside.first; aside != nil && aside.w != w { // w passes it, unless it can go
			if first, v, reason, _ := g.turn(aside.w, now); reason == "" && first == aside.w && g.grant(first, v, now) {
				return true, again
			}
			again = earlier(again, aside.w.changes(now))
		}
		first, v, reason, when := g.turn(w, now)
		if reason != "" && w.flow != nil && w.wide(reason) && !w.urgent(now) {
			lane.setAside(w)
			continue
		}
		again = earlier(again, when)
		if reason != "" {
			if !w.passed(reason, now) {
				s.stuck = g.rounds
			}
			if w.slots > 1 {
				again = earlier(again, w.changes(now))
			}
			return false, again
		}
		if g.grant(first, v, now) {
			return true, again
		}
	}
}

// head returns the request of a band that goes next, or nil: one that was set aside if there
// is no other, or if it is urgent.
func (s *set) head(band int, now time.Time) *waiter {
	l := &s.lanes[band]
	if k := l.aside.first; k != nil && (len(l.turn) == 0 || k.w.urgent(now)) {
		return k.w
	}
	return l.head()
}

// changes returns when w will be content with less, zero if it will not.
func (w *waiter) changes(now time.Time) time.Time {
	switch {
	case w.patient(now):
		return w.since.Add(w.patience() + 1)
	case !w.urgent(now):
		return w.since.Add(agingShare*w.patience() + 1)
	}
	return time.Time{}
}

// wide reports whether a request waits for this reason since it takes many slots.
func (w *waiter) wide(reason string) bool {
	return w.slots > 1 && (reason == WaitSaturated || reason == WaitHeadroom)
}

// urgent reports whether a wide request has waited for so long that it holds up others, and
// takes what is left free for higher bands: ten times as long as requests take. They have
// the slots for nine tenths of the time then, as with [agingShare].
func (w *waiter) urgent(now time.Time) bool { return now.Sub(w.since) > agingShare*w.patience() }

// patience is as long as requests take of late.
func (w *waiter) patience() time.Duration {
	return time.Duration(min(w.set.held.value, longest.Seconds()) * float64(time.Second))
}

// patient reports whether a request has waited for no longer than that. Until then it
// insists on all the slots that it takes. Where higher bands have some of them all the
// time that never comes: so it goes with half of them then, and what it lacks waits in the
// engine.
func (w *waiter) patient(now time.Time) bool { return now.Sub(w.since) <= w.patience() }

// passed reports whether lower bands go on while w waits for this reason: for a while,
// if it is a large one, which waits for room in a KV cache or for many slots.
func (w *waiter) passed(reason string, now time.Time) bool {
	return reason == WaitTokens && w.patient(now) || w.wide(reason) && !w.urgent(now)
}

// owed returns the head of a band whose turn it is although higher ones wait, or have
// what is free left for them: its oldest has waited for too long, and enough of these
// have gone meanwhile. It needs mu.
func (g *Gate) owed(s *set, band int, now time.Time) *waiter {
	oldest, aging := s.ages[band].first, g.bands[band].Aging
	if s.turns[band] >= agingShare && oldest != nil && aging > 0 && now.Sub(oldest.w.since) >= aging {
		return s.head(band, now)
	}
	return nil
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
				if n.set != s {
					v, reason, again = n.set.mayGo(&g.bands[band], band, other, nil, now)
				}
				if n.set == s || reason == "" && hops < maxHops {
					first, v, reason, again = g.turnOf(other, now, hops+1)
				}
				switch {
				case reason == "":
					return first, v, "", again
				case other.passed(reason, now) || band == w.band && other.stalls(now):
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

// stalls reports whether w, whose turn it is and which cannot go, could not for some times
// as long as requests take: with lower thresholds, or what others have on its replicas,
// that may never come. It notes when that began.
func (w *waiter) stalls(now time.Time) bool {
	if w.stuck.IsZero() {
		w.stuck = now
	}
	return now.Sub(w.stuck) > stalled*max(w.patience(), time.Second)
}

// stalled is for how many times as long as requests take, or a second, one holds up those
// of other sets that it precedes.
const stalled = 4

// grant lets a request through. It returns false if there is no room any more. It
// needs mu.
func (g *Gate) grant(w *waiter, v view, now time.Time) bool {
	lease := w.set.lease(g, w, v, now)
	if lease == nil {
		return false
	}
	g.dequeue(w, true)
	w.set.went(w.band, w.needs)
	w.lease = lease
	if g.Waited != nil {
		g.Waited(w.model.Name, w.name, now.Sub(w.since))
	}
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
	for _, s := range g.active {
		v := s.look(now, question{})
		if v.ready > 0 {
			continue
		}
		for i := range s.ages {
			for k := s.ages[i].first; k != nil; k = k.next {
				if (v.full > 0 || now.Sub(k.w.since) >= k.w.model.Admission.ReplicaWait) && k.w.fallback() != nil {
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
