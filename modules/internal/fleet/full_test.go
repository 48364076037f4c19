package fleet

import (
	"testing"
	"time"

	"github.com/llmgw/llmgw/modules/schedule"
)

// take sends n requests, and fails the test if the replica takes no more before.
func take(t *testing.T, r *Replica, n int) []*Slot {
	t.Helper()
	var all []*Slot
	for range n {
		if r.State() != schedule.Ready {
			t.Fatalf("%v with %d in flight", r.State(), r.inflight.Load())
		}
		s, ok := r.Take(-1, 1)
		if !ok {
			t.Fatal("not taken")
		}
		all = append(all, &s)
	}
	return all
}

// A replica that refuses what is too much for it goes on with what it has, and
// gets the next request as soon as one of these ends.
func TestFullReplica(t *testing.T) {
	c := newClock()
	r := hold(t, c)
	// A burst: the last three of ten are refused, one after the other.
	slots := take(t, r, 10)
	for _, s := range slots[7:] {
		s.Refused("429", 0, cooldown)
		s.Release()
	}
	for range 5 {
		if r.State() != schedule.Full {
			t.Fatalf("%v with as many as it takes", r.State())
		}
		slots[0].Succeeded()
		slots[0].Release()
		slots = append(slots[1:], take(t, r, 1)...)
	}
	c.advance(fullFor)
	more := take(t, r, 3) // it may take more by now
	more[0].Refused("429", 5*time.Second, cooldown)
	more[0].Release()
	c.advance(4 * time.Second)
	if r.State() != schedule.Full {
		t.Error("it asked for more time than it got")
	}
	c.advance(time.Second)
	if r.State() != schedule.Ready {
		t.Errorf("%v after the time that it asked for", r.State())
	}
}

// A replica that refuses although it has few requests is not full.
func TestRefusalsWithRoomOpenTheBreaker(t *testing.T) {
	c := newClock()
	r := hold(t, c)
	slots := take(t, r, 5)
	slots[4].Refused("503", 0, cooldown)
	slots[4].Release()
	for i := range failuresToOpen {
		if r.State() != schedule.Full {
			t.Fatalf("%v after %d refusals", r.State(), i)
		}
		slots[i].Release() // its client left: no good sign
		for _, s := range take(t, r, 1) {
			s.Refused("503", 0, cooldown)
			s.Release()
		}
	}
	if r.State() != schedule.Cooling {
		t.Errorf("%v, want cooling", r.State())
	}
}

// A refusal by a replica that has nothing else to do is a sign of illness.
func TestRefusalWhileIdleOpensTheBreaker(t *testing.T) {
	r := hold(t, newClock())
	s := take(t, r, 1)[0]
	s.Refused("503", 0, cooldown)
	s.Release()
	if r.State() != schedule.Cooling {
		t.Errorf("%v, want cooling", r.State())
	}
}

func TestRestartForgetsThatItWasFull(t *testing.T) {
	r := hold(t, newClock())
	slots := take(t, r, 2)
	slots[1].Refused("503", 0, cooldown)
	slots[1].Release()
	r.Restarted()
	if r.State() != schedule.Ready {
		t.Errorf("%v after a restart", r.State())
	}
}
