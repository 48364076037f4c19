package admit

import "time"

// hold says whether what cannot go, though it is its turn, holds up others. It does so for a
// time, for it may be waiting for what others take again and again; and then not for nine
// times as long, for it may be waiting for what never comes. So however many such requests
// there are, one after the other, those that could go have nine tenths of the time.
type hold struct {
	from, to time.Time // the time in which others are held up
	next     time.Time // until then they are not again
}

// begin reports whether others are held up now, and begins to if they may be.
func (h *hold) begin(now time.Time, d time.Duration) bool {
	if !now.Before(h.next) {
		*h = hold{from: now, to: now.Add(d), next: now.Add(agingShare * d)}
	}
	return h.on(now)
}

// on reports whether others are held up now.
func (h *hold) on(now time.Time) bool { return now.Before(h.to) }

// end notes that it went, for which others have been held up until now.
func (h *hold) end(now time.Time) {
	if h.on(now) {
		h.to, h.next = now, now.Add((agingShare-1)*now.Sub(h.from))
	}
}

// heldFor is for how many times as long as requests take others are held up at most, for
// slots of another set or for room in a KV cache: all that run have ended by then, but for
// a few. For many slots at once it is as long as requests take: half of these end in less.
const heldFor = 4

// patience is as long as requests take of late, and a second at least, or if nobody knows.
func (s *set) patience() time.Duration {
	return time.Duration(max(1, min(s.held.value, longest.Seconds())) * float64(time.Second))
}

// patient reports whether a request has waited for no longer than that. Until then it
// insists on all the slots that it takes. Where higher bands have some of them all the
// time that never comes: so it goes with half of them then, and what it lacks waits in the
// engine.
func (w *waiter) patient(now time.Time) bool { return now.Sub(w.since) <= w.set.patience() }

// urgent reports whether a request of many slots takes what is left free for higher bands:
// while it holds up others, and has waited for ten times as long as requests take.
func (w *waiter) urgent(now time.Time) bool {
	return w.slots > 1 && w.set.holding(w.band, now) && now.Sub(w.since) > agingShare*w.set.patience()
}

// large reports whether a request waits for this reason since it takes more than others
// do: many slots, or twice the usual room in a KV cache and an eighth of all there is: what
// takes less finds room soon. Others may go before it, then.
func (w *waiter) large(reason string) bool {
	switch reason {
	case WaitSaturated:
		return w.slots > 1
	case WaitHeadroom, WaitTokens:
		size, holds := &w.set.size, float64(w.holds)
		return w.slots > 1 || size.known && holds > max(2*size.value, w.set.room/8)
	}
	return false
}

// holding reports whether large requests of a band hold up others now.
func (s *set) holding(band int, now time.Time) bool { return s.tags[band].large.on(now) }

// insist begins to hold up others for the large requests of a band that are set aside, if
// the first of them has waited for as long as requests take. It returns when to look again.
func (s *set) insist(band int, now time.Time) (again time.Time) {
	w := s.lanes[band].passed()
	if w == nil {
		return time.Time{}
	}
	h, d := &s.tags[band].large, s.patience()
	if !w.patient(now) {
		limit := d
		if w.slots == 1 {
			limit *= heldFor
		}
		h.begin(now, limit)
	}
	for _, t := range [...]time.Time{w.since.Add(d + 1), w.since.Add(agingShare*d + 1), h.to, h.next} {
		if t.After(now) {
			again = earlier(again, t)
		}
	}
	return again
}

// waitFor reports whether those of the set wait for w, whose turn it is and which cannot go:
// for this reason, or "" if only because of others.
func (s *set) waitFor(w *waiter, reason string, now time.Time) bool {
	t := &w.set.tags[w.band]
	switch {
	case w.large(reason) && !t.large.on(now):
		return false
	case w.set == s:
		return true // who is after it in its own set needs no less than it does
	default:
		return t.stall.begin(now, heldFor*w.set.patience())
	}
}
