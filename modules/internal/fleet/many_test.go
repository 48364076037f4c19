package fleet

import (
	"testing"
	"time"

	"github.com/llmgw/llmgw/modules/schedule"
)

// wide sends a request of so many sequences.
func wide(t *testing.T, r *Replica, n int64) *Slot {
	t.Helper()
	s := take(t, r, 1)[0]
	s.Sequences(n)
	return s
}

// TestTooManySequences: who is refused for the number of its sequences keeps others of as many
// from the replica for a while, and nobody else.
func TestTooManySequences(t *testing.T) {
	c := newClock()
	r := hold(t, c)
	other := take(t, r, 1)[0]
	if wide(t, r, 8).TooMany(8, 0, cooldown) || !r.TakesMany(c.now(), 8) {
		t.Error("a refusal beside another counts")
	}
	other.Release()
	pause := firstPause
	for range 3 {
		if !wide(t, r, 8).TooMany(8, 0, cooldown) {
			t.Error("it is not known to have had nothing else")
		}
		if r.State() != schedule.Ready || !r.TakesMany(c.now(), 1) || !r.TakesMany(c.now(), 7) || r.TakesMany(c.now(), 8) || r.TakesMany(c.now(), 9) {
			t.Errorf("it is %v, takes 7: %v, 8: %v", r.State(), r.TakesMany(c.now(), 7), r.TakesMany(c.now(), 8))
		}
		if c.advance(pause - time.Nanosecond); r.TakesMany(c.now(), 8) {
			t.Errorf("it takes 8 again within %v", pause)
		}
		if c.advance(time.Nanosecond); !r.TakesMany(c.now(), 8) {
			t.Errorf("it does not take 8 after %v", pause)
		}
		pause *= 2
	}
	wide(t, r, 4).TooMany(4, 0, cooldown)
	if r.TakesMany(c.now(), 4) || !r.TakesMany(c.now(), 3) {
		t.Error("four were refused, and are taken")
	}
	if three := wide(t, r, 3); true {
		three.Succeeded()
		three.Release()
	}
	if r.TakesMany(c.now(), 4) {
		t.Error("three were answered, and four are taken")
	}
	c.advance(cooldown)
	four := wide(t, r, 4)
	four.Succeeded()
	four.Release()
	wide(t, r, 4).TooMany(4, 0, cooldown)
	if c.advance(firstPause); !r.TakesMany(c.now(), 4) {
		t.Error("the pause goes on from before four were answered")
	}
	wide(t, r, 4).TooMany(4, 5*time.Second, cooldown)
	if c.advance(5*time.Second - 1); r.TakesMany(c.now(), 4) || r.State() != schedule.Ready {
		t.Errorf("it is %v and takes four, though it asked for time", r.State())
	}
}

// TestTooManyOnTrial: it says nothing of whether the replica has come back.
func TestTooManyOnTrial(t *testing.T) {
	c := newClock()
	r := hold(t, c)
	for range failuresToOpen {
		s := take(t, r, 1)[0]
		s.Failed("x", cooldown)
		s.Release()
	}
	c.advance(firstPause)
	s := wide(t, r, 2)
	if r.State() != schedule.Cooling {
		t.Fatalf("%v with one on trial", r.State())
	}
	s.TooMany(2, 0, cooldown)
	if r.State() != schedule.Ready {
		t.Errorf("%v, and nobody is on trial", r.State())
	}
}
