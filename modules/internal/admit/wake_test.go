package admit

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/llmgw/llmgw/modules/internal/fleet"
)

// TestNobodyIsLeftWaiting: whatever frees a slot, beside whatever else happens in the
// same moment, wakes who waits for it. No timer does.
func TestNobodyIsLeftWaiting(t *testing.T) {
	noTick(t)
	for name, beside := range map[string]func(t *testing.T, s *site, l *Lease) fleet.Slot{
		"nothing": func(*testing.T, *site, *Lease) fleet.Slot { return fleet.Slot{} },
		"another is placed": func(t *testing.T, s *site, l *Lease) fleet.Slot {
			return take(t, s.engines[0].replica, l)
		},
		"another is placed, fails and is placed again": func(t *testing.T, s *site, l *Lease) fleet.Slot {
			slot := take(t, s.engines[0].replica, l)
			slot.Release()
			return take(t, s.engines[0].replica, l)
		},
		"a client leaves": func(t *testing.T, s *site, _ *Lease) fleet.Slot {
			leave(s.start(t.Context(), s.request("silver", "c")))
			return fleet.Slot{}
		},
		"one of a lower band comes": func(t *testing.T, s *site, _ *Lease) fleet.Slot {
			leave(s.start(t.Context(), s.request("bronze", "c")))
			return fleet.Slot{}
		},
		"it is looked at": func(_ *testing.T, s *site, _ *Lease) fleet.Slot {
			s.gate.Depths()
			return fleet.Slot{}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := strict(t, 1, 2)
			for range 500 {
				var held []*Lease
				for range 2 {
					lease, err := s.gate.Acquire(t.Context(), s.request("silver", "a"))
					if err != nil {
						t.Fatal(err)
					}
					held = append(held, lease)
				}
				w := s.start(t.Context(), s.request("silver", "b"))
				poll(t, func() bool { return s.gate.waiting.Load() == 1 })
				var slot fleet.Slot
				var wg sync.WaitGroup
				wg.Go(func() { slot = beside(t, s, held[0]) })
				wg.Go(func() { held[1].Release(1) })
				wg.Wait()
				select {
				case <-w.done:
				case <-time.After(10 * time.Second):
					t.Fatal("a slot is free, and one waits")
				}
				w.lease.Release(1)
				slot.Release()
				held[0].Release(1)
				poll(t, func() bool { return s.gate.waiting.Load() == 0 })
			}
			s.atRest(t)
		})
	}
}

// take places a request on a replica.
func take(t *testing.T, r *fleet.Replica, l *Lease) fleet.Slot {
	t.Helper()
	slot, ok := r.Take(-1, l.Tokens())
	if !ok {
		t.Fatal("the replica is not to be used")
	}
	slot.Sequences(l.Sequences())
	runtime.Gosched() // now it counts twice
	l.Placed()
	return slot
}

// TestOneComesWhileAnotherIsPlaced: that counts twice for a moment, and the one that comes
// in this moment finds all slots taken.
func TestOneComesWhileAnotherIsPlaced(t *testing.T) {
	noTick(t)
	s := strict(t, 1, 2)
	for range 30_000 {
		first, err := s.gate.Acquire(t.Context(), s.request("silver", "a"))
		if err != nil {
			t.Fatal(err)
		}
		var slot fleet.Slot
		var wg sync.WaitGroup
		wg.Go(func() { slot = take(t, s.engines[0].replica, first) })
		second := s.start(t.Context(), s.request("silver", "b"))
		wg.Wait()
		select {
		case <-second.done:
		case <-time.After(10 * time.Second):
			t.Fatal("a slot is free, and one waits")
		}
		second.lease.Release(1)
		slot.Release()
		first.Release(1)
	}
	s.atRest(t)
}

// noTick leaves replicas alone unless something happens in the gate. A look in the same
// moment could let one go in the turn of another.
func noTick(t *testing.T) {
	usual := tick
	tick = time.Hour
	t.Cleanup(func() { tick = usual })
}

// leave ends a request that may have been let through a moment before.
func leave(a *asked) {
	a.cancel()
	<-a.done
	a.lease.Release(-1)
}

// poll waits for something that other goroutines are about to do.
func poll(t *testing.T, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for !holds() {
		if ctx.Err() != nil {
			t.Fatal("it does not come to that")
		}
		runtime.Gosched()
	}
}
