package fleet

import (
	"testing"
	"time"

	"github.com/llmgw/llmgw/modules/schedule"
)

// TestR07_FrozenStatsAreUnknown: a page that goes on to claim requests and does not move
// while the gateway's own come and go says nothing of the engine.
func TestR07_FrozenStatsAreUnknown(t *testing.T) {
	c := newClock()
	r := hold(t, c)
	scrape := func(waiting schedule.Gauge) *Stats {
		c.advance(time.Second)
		r.SetStats(&Stats{At: c.now(), Waiting: waiting, Running: 8, KVUsage: 0.5})
		return r.Stats()
	}
	for range 10 { // another gateway's, for all that anybody knows
		if scrape(2).Frozen {
			t.Fatal("frozen, with none of the gateway's own to tell by")
		}
	}
	slot, _ := r.Take(-1, 9)
	if scrape(2).Frozen {
		t.Error("frozen, with one that may have come since the page was written")
	}
	if s := scrape(2); !s.Frozen {
		t.Errorf("one more, and the page does not move: %+v", s)
	}
	if got := fill(r, c.now()); got.Waiting.Known() || got.Running.Known() || got.KVUsage.Known() {
		t.Errorf("a frozen page counts: %+v", got)
	}
	if l := r.Load(c.now(), 8); l.Total != 1 || l.Free != 7 {
		t.Errorf("a frozen page counts: %+v", l)
	}
	if s := scrape(3); s.Frozen {
		t.Error("it moves again")
	}
	slot.Release()
	for i := range 10 {
		if s := scrape(3); s.Frozen != (i >= 4) {
			t.Errorf("%d s after the one has ended: frozen %v", i+1, s.Frozen)
		}
	}
	// What claims no more than there is does no harm.
	var slots []Slot
	for range 11 {
		s, _ := r.Take(-1, 9)
		slots = append(slots, s)
	}
	scrape(3)
	if s := scrape(3); s.Frozen {
		t.Error("frozen, with as many of the gateway's own")
	}
	for i := range slots {
		slots[i].Release()
	}
	r.Restarted()
	if s := scrape(3); s.Frozen {
		t.Error("frozen after a restart")
	}
}
