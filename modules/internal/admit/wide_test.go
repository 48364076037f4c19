package admit

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llmgw/llmgw/modules/internal/fleet"
	"github.com/llmgw/llmgw/modules/schedule"
)

// busy makes a site of one replica of so many slots, on which requests take a second, so
// many of them at any time.
func busy(t *testing.T, slots, n int) (*site, func()) {
	t.Helper()
	s := strict(t, 1, slots)
	ctx, stop := context.WithCancel(t.Context())
	for i := range n {
		go func() {
			time.Sleep(time.Duration(i) * time.Second / time.Duration(n))
			for ctx.Err() == nil {
				lease, err := s.gate.Acquire(ctx, s.request("platinum", "p"))
				if err != nil {
					return
				}
				time.Sleep(time.Second)
				lease.Release(50)
			}
		}()
	}
	time.Sleep(5 * time.Second) // it is known how long they take
	return s, func() {
		stop()
		time.Sleep(2 * time.Second)
		synctest.Wait()
	}
}

// TestWideBesideHigherBands: one that takes more slots than higher bands ever leave free
// goes with half of them after a while, neither refused nor holding up others till then.
func TestWideBesideHigherBands(t *testing.T) {
	for _, n := range []int64{8, 100} {
		synctest.Test(t, func(t *testing.T) {
			s, stop := busy(t, 8, 2)
			r := s.request("silver", "a")
			r.Sequences = n
			wide := s.start(t.Context(), r)
			if wide.went() || wide.refused() != "" {
				t.Fatalf("%d sequences: %v", n, wide.err)
			}
			if low := s.start(t.Context(), s.request("bronze", "b")); !low.went() {
				t.Errorf("%d sequences: one of a lower band waits behind it: %v", n, low.err)
			} else {
				low.lease.Release(50)
			}
			time.Sleep(2 * time.Second)
			if !wide.went() {
				t.Fatalf("%d sequences: they wait still: %v", n, wide.err)
			}
			held := s.gate.set(s.model, time.Now()).held.value
			time.Sleep(time.Duration((n+7)/8) * time.Second)
			wide.lease.Release(50)
			if v := s.gate.Explain(r); v.Refused != "" {
				t.Errorf("%+v", v)
			}
			if after := s.gate.set(s.model, time.Now()).held.value; after > held+0.1 {
				t.Errorf("%d sequences: an engine runs one for %v s, before for %v", n, after, held)
			}
			stop()
			s.atRest(t)
		})
	}
}

// TestWideBesideBursts: one that would take what is left free for higher bands does so when a
// replica has been kept for it for as long as requests take, and the next one only ten times
// as long after it; others of the band pass it, but for these moments.
func TestWideBesideBursts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, stop := busy(t, 8, 3)
		for range 5 { // so four slots are left free
			var burst []*Lease
			for range 4 {
				lease, err := s.gate.Acquire(t.Context(), s.request("platinum", "p"))
				if err != nil {
					t.Fatal(err)
				}
				burst = append(burst, lease)
			}
			time.Sleep(time.Second)
			for _, l := range burst {
				l.Release(50)
			}
		}
		r := s.request("bronze", "a")
		r.Sequences = 8
		for round, earliest := range []time.Duration{2 * time.Second, 9 * time.Second} {
			wide, begin, held := s.start(t.Context(), r), time.Now(), 0
			if wide.went() {
				t.Fatal("it goes at once, into what is left free")
			}
			for range 20 { // others of its band pass it
				narrow := s.start(t.Context(), s.request("bronze", "b"))
				if !narrow.went() {
					held++
				}
				time.Sleep(time.Second)
				if wide.went() {
					leave(narrow)
					break
				}
				if narrow.went() {
					narrow.lease.Release(50)
				} else {
					leave(narrow)
				}
			}
			took := time.Since(begin)
			if !wide.went() || took < earliest || held > 6 {
				t.Errorf("round %d: it goes: %v, after %v, with %d of its band held up", round, wide.went(), took, held)
			}
			leave(wide)
		}
		stop()
		s.atRest(t)
	})
}

// TestAgingPastOneThatDoesNotFit: what the lowest band waits for does not take away the
// turn of the one above it.
func TestAgingPastOneThatDoesNotFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, lease := patient(t, func(*Band) {})
		stats := func() {
			s.engines[0].replica.SetStats(&fleet.Stats{At: time.Now(), Waiting: 0, Running: 0, KVUsage: schedule.Gauge(0.5), BlockSize: 10, Blocks: 1000})
		}
		stats()
		s.model.Endpoints[0].Slots = 2 // of which one is in use all the time
		more := *s.model
		s.model = &more
		s.configure(t, s.gate.bands)
		always, err := s.gate.Acquire(t.Context(), s.request("platinum", "x"))
		if err != nil {
			t.Fatal(err)
		}
		large := s.request("bronze", "a")
		large.Prompt = 7000
		low := s.start(t.Context(), large)
		silver := s.wait(t, "silver", "a")
		next := s.wait(t, "gold", "b")
		time.Sleep(2 * time.Minute)
		for i := range agingShare + 2 {
			stats()
			after := s.wait(t, "gold", "b")
			lease.Release(1)
			if silver.went() {
				if i < agingShare-1 { // one of platinum went, too
					t.Errorf("after %d of gold", i)
				}
				silver.lease.Release(1)
			}
			if !next.went() {
				t.Fatal("gold waits")
			}
			lease, next = next.lease, after
		}
		if !silver.went() || low.went() {
			t.Errorf("silver %v, the large one of bronze %v", silver.went(), low.went())
		}
		low.cancel()
		order(t, lease, []*asked{next})
		always.Release(1)
		s.atRest(t)
	})
}

// TestBurstsFindRoom: what came at once and met full engines is left room for the next
// time.
func TestBurstsFindRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const burst = 6
		s := strict(t, 4, 8)
		ctx, stop := context.WithCancel(t.Context())
		for i := range 100 {
			go func() {
				time.Sleep(time.Duration(i) * 10 * time.Millisecond)
				for ctx.Err() == nil {
					if lease, err := s.gate.Acquire(ctx, s.request("bronze", "b")); err == nil {
						time.Sleep(time.Second)
						lease.Release(50)
					} else {
						time.Sleep(time.Second)
					}
				}
			}()
		}
		time.Sleep(10 * time.Second)
		for round := range 3 {
			var all []*asked
			for range burst {
				all = append(all, s.start(t.Context(), s.request("platinum", "p")))
			}
			synctest.Wait()
			at := 0
			for _, a := range all {
				if a.went() {
					at++
				}
			}
			if round > 0 && at < burst {
				t.Errorf("burst %d: %d of %d go at once", round, at, burst)
			}
			time.Sleep(time.Second)
			for _, a := range all {
				if !a.went() {
					t.Fatalf("platinum waits: %v", a.err)
				}
				a.lease.Release(50)
			}
			time.Sleep(20 * time.Second)
		}
		stop()
		time.Sleep(time.Minute)
	})
}
