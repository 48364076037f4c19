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

// refuse has a request refused.
func refuse(s *Slot, asked time.Duration) { s.Refused("answered 429", asked, cooldown) }

// A replica that refuses what is too much for it goes on with what it has, and
// gets the next request as soon as one of these ends.
func TestFullReplica(t *testing.T) {
	c := newClock()
	r := hold(t, c)
	// A burst: ten of fourteen are refused before anybody has looked again.
	slots := take(t, r, 14)
	for _, s := range slots[4:] {
		refuse(s, 0)
	}
	slots = slots[:4]
	for range 5 {
		c.advance(settling)
		if reason, since := r.Full(); r.State() != schedule.Full || reason != "answered 429" || since.IsZero() {
			t.Fatalf("%v with as many as it takes: %q, %v", r.State(), reason, since)
		}
		if _, ok := r.Take(-1, 1); ok {
			t.Fatal("it is given more than it takes")
		}
		slots[0].Succeeded()
		slots[0].Release()
		slots = append(slots[1:], take(t, r, 1)...)
	}
	c.advance(fullFor)
	// By now it may take more: one first, then ever more.
	more := take(t, r, 1)
	if r.State() != schedule.Full {
		t.Errorf("%v with one more than it took", r.State())
	}
	c.advance(3 * time.Second)
	more = append(more, take(t, r, 7)...)
	if r.State() != schedule.Full {
		t.Errorf("%v with eight more than it took", r.State())
	}
	refuse(more[7], 5*time.Second)
	slots[0].Release() // it asked for time, not only for fewer
	c.advance(5*time.Second - 1)
	if r.State() != schedule.Full {
		t.Errorf("%v before the time that it asked for is over", r.State())
	}
	c.advance(12 * time.Second)
	if reason, _ := r.Full(); r.State() != schedule.Ready || reason != "" {
		t.Errorf("%v after it: %q", r.State(), reason)
	}
}

// A refusal of long ago says nothing of one that comes now.
func TestFullAgain(t *testing.T) {
	c := newClock()
	r := hold(t, c)
	take(t, r, 3)
	for range 2 {
		refuse(take(t, r, 1)[0], 0)
		if _, since := r.Full(); !since.Equal(c.now()) {
			t.Errorf("full since %v, want %v", since, c.now())
		}
		c.advance(time.Hour)
	}
	refuse(take(t, r, 1)[0], 0)
	c.advance(fullFor)
	if r.State() != schedule.Ready {
		t.Errorf("%v after %v: the pause of before counts", r.State(), fullFor)
	}
}

// A replica that refuses although it has few requests is not full.
func TestRefusalsWithRoomOpenTheBreaker(t *testing.T) {
	c := newClock()
	r := hold(t, c)
	slots := take(t, r, 5)
	refuse(slots[4], 0)
	for i := range failuresToOpen {
		if r.State() != schedule.Full {
			t.Fatalf("%v after %d refusals", r.State(), i)
		}
		c.advance(settling)
		slots[i].Release() // its client left: no good sign
		refuse(take(t, r, 1)[0], 0)
	}
	if r.State() != schedule.Cooling {
		t.Errorf("%v, want cooling", r.State())
	}
}

// A replica that refuses everything but goes on with one stream is asked ever less
// often, as one would be whose breaker is open.
func TestRefusalsBesideAStream(t *testing.T) {
	c := newClock()
	r := hold(t, c)
	take(t, r, 1)
	tries := 0
	for range 60 * 20 {
		if r.State() == schedule.Ready {
			tries++
			refuse(take(t, r, 1)[0], 0)
		}
		c.advance(50 * time.Millisecond)
	}
	if tries < 5 || tries > 8 { // at 0, 1, 3, 7, 15, 30, 45 s
		t.Errorf("it was tried %d times in a minute", tries)
	}
}

// A half-open breaker's one request is refused by a replica that works on others:
// it is full, and no longer ill.
func TestTrialRefusedByAFullReplica(t *testing.T) {
	c := newClock()
	r := hold(t, c)
	others := take(t, r, 3)
	for range failuresToOpen {
		r.Breaker.Failed(c.now(), "500", 0, cooldown)
	}
	c.advance(firstPause)
	refuse(take(t, r, 1)[0], 0)
	if r.State() != schedule.Full {
		t.Errorf("%v, want full", r.State())
	}
	others[0].Release()
	if r.State() != schedule.Ready {
		t.Errorf("%v when one of the others has ended", r.State())
	}
}

// A refusal by a replica that has nothing else to do is a sign of illness.
func TestRefusalWhileIdleOpensTheBreaker(t *testing.T) {
	r := hold(t, newClock())
	s := take(t, r, 1)[0]
	refuse(s, 0)
	if r.State() != schedule.Cooling {
		t.Errorf("%v, want cooling", r.State())
	}
}

func TestRestartForgetsThatItWasFull(t *testing.T) {
	r := hold(t, newClock())
	slots := take(t, r, 2)
	refuse(slots[1], 0)
	r.Restarted()
	if r.State() != schedule.Ready {
		t.Errorf("%v after a restart", r.State())
	}
}

// TestFullOfSequences: an engine that runs four sequences and queues none is full, not broken,
// when one request has all four.
func TestFullOfSequences(t *testing.T) {
	c := newClock()
	r := hold(t, c)
	slots := take(t, r, 5)
	refuse(slots[4], 0)
	c.advance(settling)
	for _, s := range slots[:4] {
		s.Succeeded()
		s.Release()
	}
	wide := take(t, r, 1)[0]
	wide.Sequences(4)
	if r.State() != schedule.Full {
		t.Errorf("%v with as many sequences as it takes", r.State())
	}
	if _, ok := r.Take(-1, 1); ok {
		t.Error("it is given more than it takes")
	}
	wide.Sequences(3)
	take(t, r, 1)
	if r.State() != schedule.Full {
		t.Errorf("%v with as many sequences as it takes, of two requests", r.State())
	}
}
