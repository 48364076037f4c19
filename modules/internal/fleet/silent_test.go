package fleet

import (
	"strings"
	"testing"
	"time"

	"github.com/llmgw/llmgw/modules/schedule"
)

const waited = time.Minute

// TestR12_SilentReplica: requests wait, and nothing comes for any of them.
func TestR12_SilentReplica(t *testing.T) {
	c := newClock()
	r := hold(t, c)
	slots := make([]Slot, 4)
	for i := range slots {
		slots[i], _ = send(r)
	}
	c.advance(waited)
	for i := range silentToOpen - 1 {
		slots[i].Silent(waited, cooldown)
		slots[i].Silent(waited, cooldown) // counts once
	}
	if r.State() != schedule.Ready {
		t.Fatal("a few long requests took it out")
	}
	slots[2].Silent(waited, cooldown)
	reason, _ := r.Breaker.Reason()
	if r.State() != schedule.Cooling || !strings.HasPrefix(reason, "no progress: nothing came for 1m0s while 3 requests waited") {
		t.Fatalf("%s, %q", r.State(), reason)
	}
	// A word to any of them shows that it lives.
	slots[3].Succeeded()
	if r.State() != schedule.Ready {
		t.Error("it is out although it speaks again")
	}
	for i := range slots {
		slots[i].Release()
	}
	if n := r.silent.Load(); n != 0 {
		t.Errorf("%d requests wait for ever", n)
	}
}

// A replica that talks to others is not silent, however many wait.
func TestSilenceTowardsSome(t *testing.T) {
	c := newClock()
	r := hold(t, c)
	var slots []Slot
	for range 10 {
		s, _ := send(r)
		slots = append(slots, s)
	}
	c.advance(waited - time.Second)
	r.Progressed(c.now()) // a stream of tokens
	c.advance(time.Second)
	for i := range slots {
		slots[i].Silent(waited, cooldown)
	}
	if r.State() != schedule.Ready {
		t.Error("it is out although it gives tokens")
	}
	// Those that got an answer, or left, do not count any more.
	for i := range slots {
		slots[i].Release()
	}
	c.advance(waited)
	s, _ := send(r)
	s.Silent(waited, cooldown)
	if r.State() != schedule.Ready {
		t.Error("requests that are gone took it out")
	}
	s.Release()
}
