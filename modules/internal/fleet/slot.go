package fleet

import (
	"fmt"
	"time"
)

// Slot counts one request on a replica. The zero Slot counts none. Not for
// concurrent use; the replica's counters are.
type Slot struct {
	replica *Replica
	tokens  int64
	compute int64 // tokens of its prompt to compute before its answer can begin
	reuse   int64 // of its tokens those that are not to be computed
	extra   int64 // sequences beyond the first
	probe   int64 // names the one request of a half-open breaker; 0 for any other
	silent  bool  // it counts as one to which nothing was said
	begun   bool  // its answer has
	beside  bool  // it was sent while the replica had others
	roomy   bool  // it was sent although the replica had refused another: there was room again
}

// Take counts a request of so many tokens that its KV cache is estimated to hold for it alone, if the replica still has
// the in-flight that a decision saw; seen below 0 means whatever it has. It
// returns false, and counts nothing, if another request came or went in
// between: then decide anew. So simultaneous requests cannot all choose the
// replica that was idle a moment ago, and none waits for a lock. It also returns
// false if the replica's breaker lets no request through any more.
func (r *Replica) Take(seen int, tokens int64) (Slot, bool) {
	if seen < 0 {
		seen = int(r.inflight.Add(1)) - 1
		if r.full.at(r.now(), int64(seen)+r.extra.Load()) {
			r.inflight.Add(-1)
			return Slot{}, false
		}
	} else if !r.inflight.CompareAndSwap(int64(seen), int64(seen)+1) {
		return Slot{}, false
	}
	probe, ok := r.Breaker.claim(r.now)
	if !ok {
		r.inflight.Add(-1)
		return Slot{}, false
	}
	r.pending.Add(tokens)
	return Slot{replica: r, tokens: tokens, probe: probe, beside: seen > 0, roomy: r.full.roomy(r.now)}, true
}

// Sequences notes that the request is so many sequences to the engine, which runs
// each as it would a request: the choices of a completion, or the prompts of a list. Called
// again, it counts as so many from now on.
func (s *Slot) Sequences(n int64) {
	if extra := max(n, 1) - 1; s.replica != nil && extra != s.extra {
		s.replica.extra.Add(extra - s.extra)
		s.extra = extra
	}
}

// Prompt notes how many tokens of the request's prompt the replica has to compute before its answer
// begins, and how many of the slot's it need not, since its KV cache has them.
func (s *Slot) Prompt(compute, reuse int64) {
	if s.replica == nil {
		return
	}
	if s.begun {
		compute = 0
	}
	s.replica.prefill.Add(compute - s.compute)
	s.replica.reused.Add(reuse - s.reuse)
	s.compute, s.reuse = compute, reuse
}

// Release gives the slot back. Releasing it again, or a zero Slot, does
// nothing.
func (s *Slot) Release() {
	if s.replica == nil {
		return
	}
	s.heard()
	if s.begun {
		s.replica.answering.Add(-1)
	}
	s.Prompt(0, 0)
	s.replica.inflight.Add(-1)
	s.replica.extra.Add(-s.extra)
	s.replica.pending.Add(-s.tokens)
	if s.probe != 0 {
		s.replica.Breaker.Abandoned(s.probe)
	}
	*s = Slot{}
}

// Alive notes the first word of the answer.
func (s *Slot) Alive() {
	if s.replica == nil {
		return
	}
	s.heard()
	if !s.begun {
		s.begun = true
		s.Prompt(0, s.reuse)
		s.replica.begun()
	}
	s.replica.Progressed(s.replica.now())
	s.replica.Breaker.Alive(s.probe)
}

// Succeeded notes that the replica answered well, or with an error that the
// client is to blame for.
func (s *Slot) Succeeded() {
	if s.replica != nil {
		s.heard()
		s.replica.full.good()
		s.replica.many.good(s.extra + 1)
		s.replica.Breaker.Succeeded(s.probe)
		s.probe = 0
	}
}

// Refused notes that the replica asked for less, for so long if asked is not 0, and
// gives the slot back. If it has other requests it is full, and takes more when one
// of these ends; if it refuses what there should have been room for, that is a
// failure. Without any other request the breaker opens; see [Breaker.Refused].
func (s *Slot) Refused(reason string, asked, cooldown time.Duration) {
	if s.replica == nil {
		return
	}
	r, now, probe, roomy, beside := s.replica, s.replica.now(), s.probe, s.roomy, s.beside
	s.probe = 0
	s.Release() // else those that are refused at once would count as others
	others := r.sequences()
	if others <= 0 && beside { // they have ended meanwhile
		others = 1
	}
	switch {
	case others <= 0:
		r.Breaker.Refused(now, reason, probe, asked, cooldown)
		return
	case probe != 0:
		r.Breaker.Alive(probe) // it works on others
	case roomy:
		r.Breaker.Failed(now, reason, 0, cooldown)
	}
	r.full.mark(now, reason, others, asked, cooldown)
}

// TooMany is Refused for a request of n sequences, whose number may be what was too many: so it
// tells nothing of others. It returns whether the replica had nothing else; then no others
// of as many go there for a while, see [Replica.TakesMany].
func (s *Slot) TooMany(n int64, asked, cooldown time.Duration) (alone bool) {
	if s.replica == nil {
		return false
	}
	r := s.replica
	s.Release()
	alone = r.sequences() <= 0
	if alone {
		r.many.refused(r.now(), n, asked, cooldown)
	}
	return alone
}

// Failed notes that the replica failed; see [Breaker.Failed].
func (s *Slot) Failed(reason string, cooldown time.Duration) {
	if s.replica != nil {
		s.replica.Breaker.Failed(s.replica.now(), reason, s.probe, cooldown)
		s.probe = 0
	}
}

// Silent notes that the request has waited for so long without a word. When
// several have, and the replica has said nothing to any other in that time, it
// is let alone: its health page may be fine while its engine hangs.
func (s *Slot) Silent(waited, cooldown time.Duration) {
	if s.replica == nil {
		return
	}
	if !s.silent {
		s.silent = true
		s.replica.silent.Add(1)
	}
	if n := s.replica.silent.Load(); n >= silentToOpen && s.Quiet(waited) {
		s.replica.Breaker.Silent(s.replica.now(), fmt.Sprintf("no progress: nothing came for %v while %d requests waited", waited, n), cooldown)
	}
}

// Quiet reports whether the replica has said nothing to any request for so long.
func (s *Slot) Quiet(d time.Duration) bool {
	return s.replica == nil || s.replica.now().UnixNano()-s.replica.progress.Load() >= int64(d)
}

// heard ends what Silent began.
func (s *Slot) heard() {
	if s.silent {
		s.silent = false
		s.replica.silent.Add(-1)
	}
}

// Held reports whether the slot counts on a replica now.
func (s *Slot) Held() bool { return s.replica != nil }
