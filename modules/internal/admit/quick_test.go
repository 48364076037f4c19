package admit

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llmgw/llmgw/modules/internal/fleet"
)

// TestNoSlotIsGivenTwice: requests that take no lock, others that wait, bands that
// change and replicas that are looked at, all at once; never more than the slots are
// in use, and nothing is forgotten.
func TestNoSlotIsGivenTwice(t *testing.T) {
	const slots = 8
	s := strict(t, 2, slots/2)
	var using, most, waited atomic.Int64
	done := make(chan struct{})
	var wg, other sync.WaitGroup
	other.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
			}
			bands := Bands()
			for j := range bands {
				bands[j].Ceiling, bands[j].Queue = 0.01, 1000+i%2
			}
			s.configure(t, bands)
			s.gate.Explain(s.request("silver", "x"))
			runtime.Gosched()
		}
	})
	for client := range 3 * slots {
		wg.Go(func() {
			for i := range 300 {
				lease, err := s.gate.Acquire(t.Context(), s.request("silver", string(rune('a'+client%5))))
				if err != nil {
					t.Error(err)
					return
				}
				if lease.Waited() > 0 {
					waited.Add(1)
				}
				for n := using.Add(1); ; {
					if seen := most.Load(); n <= seen || most.CompareAndSwap(seen, n) {
						break
					}
				}
				for range i % 5 {
					runtime.Gosched()
				}
				using.Add(-1)
				lease.Release(1)
				if client >= slots && i%2 == 0 {
					time.Sleep(time.Microsecond) // so that now and then nobody waits
				}
			}
		})
	}
	wg.Wait()
	close(done)
	other.Wait()
	if most.Load() > slots {
		t.Errorf("%d in use at once, there are %d slots", most.Load(), slots)
	}
	if n := waited.Load(); n == 0 || n == 3*slots*300 {
		t.Errorf("%d waited: the test is to have both kinds", n)
	}
	s.atRest(t)
	if left := s.gate.notes.Load(); left != nil || s.gate.noted.Load() != 0 {
		t.Errorf("notes are left: %d", s.gate.noted.Load())
	}
}

// TestQuickRequestsAreSeen: what takes no lock counts for those below it, and teaches
// as much.
func TestQuickRequestsAreSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := strict(t, 1, 8)
		ask := func(band string) *Lease {
			l, err := s.gate.Acquire(t.Context(), s.request(band, "a"))
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		ask("gold").Release(7) // the first finds the set
		if s.gate.pass(s.request("silver", "a"), time.Now()) != nil {
			t.Error("silver went past what it is to leave to gold")
		}
		for range 5 {
			l := s.gate.pass(s.request("gold", "a"), time.Now())
			if l == nil {
				t.Fatal("it takes the lock")
			}
			time.Sleep(time.Second)
			l.Release(7)
		}
		if v := s.gate.Explain(s.request("silver", "a")); v.Headroom < 1 {
			t.Errorf("silver leaves nothing: %+v", v)
		}
		set := s.gate.set(s.model, time.Now())
		if set.output.value != 7 || set.held.value == 0 || set.expect(1000, 1) != 15 {
			t.Errorf("learnt: output %v, held %v, expect %v", set.output, set.held, set.expect(1000, 1))
		}
		time.Sleep(decay + time.Second)
		if l := s.gate.pass(s.request("silver", "a"), time.Now()); l == nil {
			t.Error("silver takes the lock long after")
		} else {
			l.Release(1)
		}
		s.atRest(t)
	})
}

// TestWideRequests: a request of many sequences takes as many slots, and all of a
// replica if it has more than that.
func TestWideRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := strict(t, 1, 8)
		wide := func(n int64) *asked {
			r := s.request("silver", "a")
			r.Sequences = n
			return s.start(t.Context(), r)
		}
		two, five := wide(2), wide(5)
		if !two.went() || !five.went() {
			t.Fatal("there is room for both")
		}
		if a := wide(2); a.went() {
			t.Error("9 sequences in 8 slots")
		} else {
			a.cancel()
		}
		one := wide(1)
		if !one.went() {
			t.Error("the last slot is free")
		}
		huge := wide(100)
		two.lease.Release(0)
		five.lease.Release(0)
		if huge.went() {
			t.Error("100 sequences beside another request")
		}
		one.lease.Release(0)
		if !huge.went() {
			t.Fatal("100 sequences never go")
		}
		last := wide(1)
		if last.went() {
			t.Error("beside 100 sequences")
		}
		huge.lease.Release(0)
		if !last.went() {
			t.Error("after 100 sequences")
		}
		last.lease.Release(0)
		// A ceiling lets requests wait in the engine, but not by the hundred.
		s.configure(t, Bands())
		one = wide(1)
		if !one.went() {
			t.Fatal("there is room for one")
		}
		if huge = wide(9); huge.went() {
			t.Error("9 sequences beside another request of 8 slots")
		}
		one.lease.Release(0)
		if !huge.went() {
			t.Fatal("9 sequences never go")
		}
		huge.lease.Release(0)
		s.atRest(t)
	})
}

// TestPlacedSequences count on the replica as they did in the lease.
func TestPlacedSequences(t *testing.T) {
	s := strict(t, 1, 8)
	r := s.request("silver", "a")
	r.Sequences = 5
	lease, err := s.gate.Acquire(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	replica := s.engines[0].replica
	slot, _ := replica.Take(-1, 100)
	slot.Sequences(lease.Sequences())
	lease.Placed()
	if l := replica.Load(time.Now(), 8); l.Total != 5 || l.Free != 3 || replica.Inflight() != 1 {
		t.Errorf("%+v, %d in flight", l, replica.Inflight())
	}
	replica.SetStats(&fleet.Stats{At: time.Now(), Waiting: 0, Running: 5})
	if l := replica.Load(time.Now(), 8); l.Total != 5 {
		t.Errorf("the engine says the same: %+v", l)
	}
	slot.Release()
	lease.Release(0)
	if l := replica.Load(time.Now(), 8); l.Total != 0 {
		t.Errorf("at rest: %+v", l)
	}
}
