package admit

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestShedAtOnce: a request that would wait for longer than it cares to is told so, and
// for how long, before it has waited.
func TestShedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, lease := patient(t, func(*Band) {})
		var all []*asked
		for range 20 {
			all = append(all, s.wait(t, "silver", "a"))
		}
		for i := range 5 { // 150 tokens a request, one in two seconds
			time.Sleep(2 * time.Second)
			lease.Release(100)
			if !all[i].went() {
				t.Fatal("the next one waits still")
			}
			lease = all[i].lease
		}
		hurried := s.request("silver", "a")
		hurried.Deadline = 5 * time.Second
		begin := time.Now()
		a := s.start(t.Context(), hurried)
		if a.refused() != ReasonDeadline || time.Since(begin) != 0 {
			t.Fatalf("it was refused for %q after %v", a.refused(), time.Since(begin))
		}
		// 15 wait; the ends of the twenty seconds before these were slower.
		refused, _ := errors.AsType[*RejectedError](a.err)
		if d := refused.RetryAfter; d < 30*time.Second || d > 120*time.Second {
			t.Errorf("come back after %v", d)
		}
		hurried.Deadline = 10 * time.Minute
		if a := s.start(t.Context(), hurried); a.went() || a.refused() != "" {
			t.Errorf("one with time: %v", a.err)
		} else {
			all = append(all, a)
		}
		order(t, lease, all[5:])
		s.atRest(t)
	})
}

// TestNeighbours: sets that have replicas in common know of each other, as long as both
// are in use.
func TestNeighbours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := strict(t, 4, 1)
		use := func(name string, from, to int) *set {
			m := *s.model
			m.Name, m.Endpoints = name, s.model.Endpoints[from:to]
			lease, err := s.gate.Acquire(t.Context(), &Request{Model: &m})
			if err != nil {
				t.Fatal(err)
			}
			lease.Release(1)
			s.gate.lock()
			defer s.gate.unlock()
			return s.gate.set(&m, time.Now())
		}
		check := func(when string, of *set, want ...neighbour) {
			t.Helper()
			if got := of.neighbours(); !slices.Equal(got, want) {
				t.Errorf("%s: %+v, want %+v", when, got, want)
			}
		}
		all, half, other := use("all", 0, 4), use("half", 0, 2), use("other", 2, 4)
		if adapter := use("adapter", 0, 2); adapter != half {
			t.Error("models with the same replicas have different sets")
		}
		check("at first", all, neighbour{half, 1, false}, neighbour{other, 1, false})
		check("at first", half, neighbour{all, 0.5, true})
		time.Sleep(forgetAfter)
		use("half", 0, 2)
		time.Sleep(2 * time.Second)
		again := use("one", 0, 1) // a new one makes room for itself
		check("after a while", half, neighbour{again, 1, false})
		if len(s.gate.sets) != 2 || len(s.gate.latest) != 3 {
			t.Errorf("%d sets, %d models are remembered", len(s.gate.sets), len(s.gate.latest))
		}
	})
}

// TestWaitsInEngines: what waits in the engines counts for how long a request will wait,
// but not for how long an engine runs one.
func TestWaitsInEngines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(1, 4, time.Second)
		s.model.Endpoints[0].Slots = 4
		e := s.engines[0]
		var wg sync.WaitGroup
		ask := func() {
			wg.Go(func() {
				lease, err := s.gate.Acquire(t.Context(), s.request("always", "a"))
				if err != nil {
					t.Error(err)
					return
				}
				_, slot := s.pick()
				lease.Placed()
				e.serve()
				slot.Release()
				lease.Release(50)
			})
			synctest.Wait()
		}
		always := NewBand("always")
		always.Priority, always.Ceiling = 1000, Unlimited
		s.configure(t, append(Bands(), always))
		if v := s.gate.Explain(s.request("bronze", "a")); v.Waits != "" || v.EstimateKnown {
			t.Errorf("idle: %+v", v)
		}
		for range 24 { // 20 of these wait in the engine
			ask()
		}
		wg.Wait()
		s.gate.Depths() // reads the notes
		held := s.gate.set(s.model, time.Now()).held.value
		if held < 0.9 || held > 1.3 {
			t.Errorf("requests of 1 s that waited for up to 5 are taken for ones of %.1f s", held)
		}
		time.Sleep(2 * decay)
		for range 24 {
			ask()
		}
		// Until one of bronze may go, all but one of the 20 have to begin: 19 ends.
		v := s.gate.Explain(s.request("bronze", "a"))
		if v.Waits != WaitSaturated || !v.EstimateKnown || v.Estimate < 4*time.Second || v.Estimate > 6*time.Second {
			t.Errorf("behind 20 in the engine: %+v", v)
		}
		hurried := s.request("bronze", "a")
		hurried.Deadline = time.Second
		if a := s.start(t.Context(), hurried); a.refused() != ReasonDeadline {
			t.Errorf("one that cares to wait for 1 s: %v", a.err)
		}
		wg.Wait()
		s.atRest(t)
	})
}
