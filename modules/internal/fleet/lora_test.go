package fleet

import (
	"testing"
	"time"

	"github.com/llmgw/llmgw/modules/schedule"
)

// TestLoRA: which adapters are loaded is what the engine uses now and what it was sent of late, up to
// as many as it keeps.
func TestLoRA(t *testing.T) {
	r := hold(t, newClock())
	if a := r.LoRA("a"); a != schedule.AdapterUnknown {
		t.Errorf("of one that says nothing: %v", a)
	}
	r.UseLoRA("a")
	r.SetStats(&Stats{At: time.Now(), Waiting: 0, Running: 1, KVUsage: 0, MaxLoRAs: 3, LoRAs: []string{"x"}})
	expect := func(name string, want schedule.Adapter) {
		t.Helper()
		if got := r.LoRA(name); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	expect("x", schedule.AdapterLoaded)
	expect("a", schedule.AdapterRoom)
	for _, name := range []string{"x", "a", "b"} {
		r.UseLoRA(name)
	}
	expect("a", schedule.AdapterLoaded)
	expect("c", schedule.AdapterNoRoom)
	r.UseLoRA("a")
	r.UseLoRA("c") // in place of x, as far as the gateway knows, but that is in use
	expect("x", schedule.AdapterLoaded)
	expect("c", schedule.AdapterLoaded)
	expect("a", schedule.AdapterLoaded)
	expect("b", schedule.AdapterLoaded)
	r.UseLoRA("d")
	expect("b", schedule.AdapterNoRoom)
	again := func(started schedule.Gauge) {
		r.SetStats(&Stats{At: time.Now(), Waiting: 0, Running: 1, KVUsage: 0, MaxLoRAs: 3, Started: started})
	}
	again(schedule.Unknown)
	again(1000)
	expect("a", schedule.AdapterLoaded)
	again(2000) // another process
	expect("a", schedule.AdapterRoom)
	r.Restarted()
	expect("a", schedule.AdapterUnknown)
}

// TestDeferredTakesNoSlot: what waits in an engine for an adapter's slot, or a transfer, leaves the
// others theirs.
func TestDeferredTakesNoSlot(t *testing.T) {
	c := newClock()
	r := hold(t, c)
	take(t, r, 10)
	for deferred, want := range map[float64]schedule.Gauge{0: 0, 6: 4} {
		r.SetStats(&Stats{At: c.now(), Waiting: 6, Running: 4, KVUsage: 0, Deferred: deferred})
		if l := r.Load(c.now(), 8); l.Free != want {
			t.Errorf("%v of six deferred, four of eight slots run: %v are free, want %v", deferred, l.Free, want)
		}
	}
}
