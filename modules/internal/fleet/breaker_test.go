package fleet

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/llmgw/llmgw/modules/schedule"
)

const cooldown = 15 * time.Second

// send takes a slot if the replica is ready.
func send(r *Replica) (Slot, bool) {
	if r.State() != schedule.Ready {
		return Slot{}, false
	}
	return r.Take(-1, 1)
}

// TestR13_BreakerClosesAgain: ten failures, a failing probe, then successes.
func TestR13_BreakerClosesAgain(t *testing.T) {
	c := newClock()
	r := hold(t, c)
	for range 10 {
		if s, ok := send(r); ok {
			s.Failed("500", cooldown)
			s.Release()
		}
	}
	if reason, since := r.Breaker.Reason(); r.State() != schedule.Cooling || reason != "500" || !since.Equal(c.now()) {
		t.Fatalf("state %s, reason %q since %v", r.State(), reason, since)
	}
	for _, pause := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 15 * time.Second, 15 * time.Second} {
		c.advance(pause - time.Millisecond)
		if _, ok := send(r); ok {
			t.Fatalf("a request got through before %v were over", pause)
		}
		c.advance(time.Millisecond)
		s, ok := send(r)
		if !ok {
			t.Fatalf("no request got through after %v", pause)
		}
		// One at a time: as long as this one is under way there is no other.
		if _, ok := send(r); ok || r.State() != schedule.Cooling {
			t.Fatal("a second request got through")
		}
		s.Failed("500", cooldown)
		s.Release()
	}
	c.advance(cooldown)
	s, ok := send(r)
	if !ok {
		t.Fatal("no request got through")
	}
	s.Succeeded()
	s.Release()
	if reason, _ := r.Breaker.Reason(); r.State() != schedule.Ready || reason != "" || r.Inflight() != 0 {
		t.Errorf("after a success: %s, %q, %d in flight", r.State(), reason, r.Inflight())
	}
	// And it starts from the first pause again.
	s, _ = send(r)
	s.Refused("503", 0, cooldown)
	s.Release()
	c.advance(firstPause)
	if r.State() != schedule.Ready {
		t.Error("the pause did not start anew")
	}
}

func TestBreakerOpensOnRefusalAtOnce(t *testing.T) {
	for asked, want := range map[time.Duration]time.Duration{0: time.Second, 7 * time.Second: 7 * time.Second, time.Hour: cooldown} {
		c := newClock()
		r := hold(t, c)
		s, _ := send(r)
		s.Refused("429", asked, cooldown)
		s.Release()
		c.advance(want - time.Millisecond)
		if r.State() != schedule.Cooling {
			t.Errorf("asked for %v: back too early", asked)
		}
		c.advance(time.Millisecond)
		if r.State() != schedule.Ready {
			t.Errorf("asked for %v: not back after %v", asked, want)
		}
	}
}

func TestBreakerCountsFailures(t *testing.T) {
	for _, c := range []struct {
		name     string
		outcomes string // over and over: s a success, f a failure, b an answer that breaks off
		opens    bool
	}{
		{"in a row", "fff", true},
		{"answers that break off", "b", true},
		{"with successes between", "ffsss", false},
		{"half of all", "fs", true},
		{"most of all", "ffs", true},
		{"some break off", "bbsss", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := hold(t, newClock())
			for range 20 {
				for _, o := range c.outcomes {
					s, ok := send(r)
					if !ok {
						if !c.opens {
							t.Fatal("it opened")
						}
						return
					}
					if o != 'f' {
						s.Alive()
					}
					if o == 's' {
						s.Succeeded()
					} else {
						s.Failed("reset", cooldown)
					}
					s.Release()
				}
			}
			if c.opens {
				t.Error("it did not open")
			}
		})
	}
}

// A long stream is no long trial: its first word closes the breaker.
func TestFirstWordEndsTheTrial(t *testing.T) {
	c := newClock()
	r := hold(t, c)
	s, _ := send(r)
	s.Refused("503", 0, cooldown)
	s.Release()
	c.advance(firstPause)
	trial, _ := send(r)
	if r.State() != schedule.Cooling {
		t.Fatal("more than one on trial")
	}
	trial.Alive()
	if r.State() != schedule.Ready {
		t.Error("not ready after the first word")
	}
	trial.Release()
	if r.State() != schedule.Ready {
		t.Error("the end of the request undid it")
	}
}

// Requests that were under way when the breaker opened neither close it nor
// lengthen the pause.
func TestBreakerIgnoresWhatWasUnderWay(t *testing.T) {
	c := newClock()
	r := hold(t, c)
	var slots []Slot
	for range 6 {
		s, _ := send(r)
		slots = append(slots, s)
	}
	for i := range slots[:5] {
		slots[i].Failed("broken", cooldown)
	}
	slots[5].Succeeded()
	if r.State() != schedule.Cooling {
		t.Error("a late success closed it")
	}
	c.advance(firstPause)
	if r.State() != schedule.Ready {
		t.Error("late failures made the pause longer")
	}
	for i := range slots {
		slots[i].Release()
	}
}

func TestAbandonedProbeLetsTheNextThrough(t *testing.T) {
	c := newClock()
	r := hold(t, c)
	s, _ := send(r)
	s.Refused("503", 0, cooldown)
	s.Release()
	c.advance(firstPause)
	s, _ = send(r)
	s.Release() // the client left
	if s, ok := send(r); !ok {
		t.Error("no further request got through")
	} else {
		s.Succeeded()
		s.Release()
	}
	if r.State() != schedule.Ready {
		t.Errorf("state %s", r.State())
	}
	s, _ = send(r)
	s.Refused("503", 0, cooldown)
	s.Release()
	r.Restarted()
	if r.State() != schedule.Ready {
		t.Error("a new process inherits the pause")
	}
}

func TestBreakerConcurrently(t *testing.T) {
	r, release := New(nil).Hold(mustURL(t, "gpu1:8000"))
	defer release()
	var probes atomic.Int32
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for i := range 500 {
				s, ok := send(r)
				if !ok {
					continue
				}
				if s.probe != 0 {
					if probes.Add(1) > 1 {
						t.Error("two probes at once")
					}
					probes.Add(-1)
				}
				switch (worker + i) % 4 {
				case 0:
					s.Refused("503", 0, time.Nanosecond)
				case 1:
					s.Failed("500", time.Nanosecond)
				case 2:
					s.Succeeded()
				}
				s.Release()
			}
		})
	}
	wg.Wait()
	if r.Inflight() != 0 || r.PendingTokens() != 0 {
		t.Errorf("%d in flight, %d tokens", r.Inflight(), r.PendingTokens())
	}
}

// A request on trial that takes long does not keep the others out for long.
func TestLongTrial(t *testing.T) {
	c := newClock()
	r := hold(t, c)
	s, _ := send(r)
	s.Refused("503", 0, cooldown)
	s.Release()
	c.advance(firstPause)
	first, _ := send(r)
	if _, ok := send(r); ok {
		t.Fatal("a second one at once")
	}
	c.advance(trialPatience)
	second, ok := send(r)
	if !ok {
		t.Fatal("nothing is tried while the first one takes its time")
	}
	first.Release() // its client left: that says nothing of the second
	if _, ok := send(r); ok {
		t.Error("a third one beside the second")
	}
	second.Succeeded()
	second.Release()
	if r.State() != schedule.Ready {
		t.Errorf("state %s", r.State())
	}
}

// A replica that breaks off what it began stays out for longer each time.
func TestBreaksAfterTheFirstWord(t *testing.T) {
	c := newClock()
	r := hold(t, c)
	broken := 0
	for range 600 { // a minute
		if s, ok := send(r); ok {
			s.Alive()
			s.Failed("broken", cooldown)
			s.Release()
			broken++
		}
		c.advance(100 * time.Millisecond)
	}
	if broken > 15 {
		t.Errorf("%d of 600 requests were broken", broken)
	}
}
