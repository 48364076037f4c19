package admit

import (
	"cmp"
	"math"
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
	g.expire(now)
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

// next lets a request of a band go, if one may, and returns whether one went, and when to
// look again, if that is a matter of time. It needs mu.
func (g *Gate) next(s *set, band int, now time.Time) (went bool, again time.Time) {
	b, lane := &g.bands[band], &s.lanes[band]
	for {
		// What a higher band waits for, this one does not take: no need to look again.
		if s.blocked == g.rounds && b.Ceiling < Unlimited {
			return false, again
		}
		head, passed := lane.head(), s.passed(lane)
		turn := len(passed) > 0 && lane.turnOf(passed[0])
		if turn && g.let(passed, true, now) {
			return true, again
		}
		if head == nil {
			return false, again
		}
		v, reason, when := s.mayGo(b, band, head, now)
		if head.large(reason) {
			s.setAside(head)
			continue
		}
		if reason != "" && g.claim(head, reason, now) {
			v, reason, when = s.mayGo(b, band, head, now) // it was kept for one after it
		}
		if reason == "" {
			if g.grant(head, v, now) {
				return true, again
			}
			continue // another took the room meanwhile
		}
		again = earlier(again, when)
		s.blocked = g.rounds
		s.waits(head, reason, now)
		return !turn && g.let(passed, false, now), again
	}
}

// passed returns a few of a lane's that others pass, with the one for which a replica is kept.
func (s *set) passed(l *lane) []*waiter {
	all := l.passed()
	if len(all) == 0 {
		return nil
	}
	if w := s.holder(l.aside); w != nil && !slices.Contains(all, w) {
		all = append(all, w)
	}
	return all
}

// let lets one of these go, which are of one band of a set, and keeps a replica for the
// first if that cannot, and may have one. It needs mu.
func (g *Gate) let(all []*waiter, claims bool, now time.Time) bool {
	for i, w := range all {
		v, reason, _ := w.set.mayGo(&g.bands[w.band], w.band, w, now)
		if reason != "" && claims && i == 0 && g.claim(w, reason, now) { // it may be urgent now
			v, reason, _ = w.set.mayGo(&g.bands[w.band], w.band, w, now)
		}
		if reason == "" && g.grant(w, v, now) {
			return true
		}
	}
	return false
}

// setAside lets others of its band pass the head of a lane.
func (s *set) setAside(w *waiter) {
	s.tags[w.band].stuck = time.Time{}
	s.lanes[w.band].setAside(w)
}

// before reports whether those that wait are before one of a band that comes now.
func (s *set) before(b *Band, band int) bool {
	first := band
	if b.Ceiling < Unlimited {
		first = 0
	}
	for i := first; i <= band; i++ {
		if s.lanes[i].n > 0 {
			return true
		}
	}
	return false
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
	for {
		all, head := s.passed(lane), lane.head()
		if head != nil && (len(all) == 0 || !lane.turnOf(all[0])) {
			all = append([]*waiter{head}, all...)
		} else if head != nil {
			all = append(all, head)
		}
		aside := false
		for _, w := range all {
			v, reason, _ := s.mayGo(&g.top, 0, w, now)
			if reason == "" && g.grant(w, v, now) {
				return true
			}
			if w == head && w.large(reason) {
				s.setAside(w)
				aside = true
			}
		}
		if !aside {
			return false
		}
	}
}

// grant lets a request through. It returns false if there is no room any more. It
// needs mu.
func (g *Gate) grant(w *waiter, v view, now time.Time) bool {
	lease := w.set.lease(g, w, v, now)
	if lease == nil {
		return false
	}
	s := w.set
	if w.urgent(now) && s.yields(w.band, now) {
		calm := now.Add(agingShare * s.patience())
		s.tags[w.band].calm = calm
		for _, n := range s.neighbours() {
			n.set.tags[w.band].calm = calm
		}
	}
	if w.lane.of != nil && w.hold != nil && !math.IsInf(s.each, 1) { // others could have had what was kept
		kept := now.Sub(w.hold.from).Seconds() / s.patience().Seconds() * s.each * s.size.value
		w.lane.of.charge(w.tenant, kept/w.weight)
	}
	if other := s.holder(w.lane); w.lane.of == nil && other != nil {
		g.unhold(other) // it is for the lane
	}
	g.dequeue(w, true, now)
	s.went(w.band, w.needs)
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
