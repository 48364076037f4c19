package fleet

import "time"

// Slot counts one request on a replica. The zero Slot counts none. Not for
// concurrent use; the replica's counters are.
type Slot struct {
	replica *Replica
	tokens  int64
	probe   bool // the one request of a half-open breaker
}

// Take counts a request of so many estimated tokens, if the replica still has
// the in-flight that a decision saw; seen below 0 means whatever it has. It
// returns false, and counts nothing, if another request came or went in
// between: then decide anew. So simultaneous requests cannot all choose the
// replica that was idle a moment ago, and none waits for a lock. It also returns
// false if the replica's breaker lets no request through any more.
func (r *Replica) Take(seen int, tokens int64) (Slot, bool) {
	if seen < 0 {
		r.inflight.Add(1)
	} else if !r.inflight.CompareAndSwap(int64(seen), int64(seen)+1) {
		return Slot{}, false
	}
	probe, ok := r.Breaker.claim(r.now)
	if !ok {
		r.inflight.Add(-1)
		return Slot{}, false
	}
	r.pending.Add(tokens)
	return Slot{replica: r, tokens: tokens, probe: probe}, true
}

// Release gives the slot back. Releasing it again, or a zero Slot, does
// nothing.
func (s *Slot) Release() {
	if s.replica == nil {
		return
	}
	s.replica.inflight.Add(-1)
	s.replica.pending.Add(-s.tokens)
	if s.probe {
		s.replica.Breaker.Abandoned()
	}
	*s = Slot{}
}

// Succeeded notes that the replica answered well, or with an error that the
// client is to blame for.
func (s *Slot) Succeeded() {
	if s.replica != nil {
		s.replica.Breaker.Succeeded(s.probe)
		s.probe = false
	}
}

// Refused notes that the replica asked for less; see [Breaker.Refused].
func (s *Slot) Refused(reason string, asked, cooldown time.Duration) {
	if s.replica != nil {
		s.replica.Breaker.Refused(s.replica.now(), reason, s.probe, asked, cooldown)
		s.probe = false
	}
}

// Failed notes that the replica failed; see [Breaker.Failed].
func (s *Slot) Failed(reason string, cooldown time.Duration) {
	if s.replica != nil {
		s.replica.Breaker.Failed(s.replica.now(), reason, s.probe, cooldown)
		s.probe = false
	}
}

// Held reports whether the slot counts on a replica now.
func (s *Slot) Held() bool { return s.replica != nil }
