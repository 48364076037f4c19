package admit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/llmgw/llmgw/modules/internal/catalog"
)

// strict makes a site whose replicas are known to have so many slots, and whose
// bands let nothing queue in them.
func strict(t testing.TB, engines, slots int) *site {
	t.Helper()
	s := newSite(engines, slots, time.Second)
	for _, e := range s.model.Endpoints {
		e.Slots = slots
	}
	bands := Bands()
	for i := range bands {
		bands[i].Ceiling = 0.01
	}
	s.configure(t, bands)
	return s
}

func (s *site) configure(t testing.TB, bands []Band) {
	t.Helper()
	sorted, err := CheckBands(bands)
	if err != nil {
		t.Fatal(err)
	}
	s.gate.Configure(sorted, func(string) *catalog.Model { return s.model })
}

// request returns one of a band and a tenant.
func (s *site) request(band, tenant string) *Request {
	return &Request{Model: s.model, Band: band, Tenant: tenant, Prompt: 50, Output: 50, Holds: true}
}

// asked is a request on its way through the gate.
type asked struct {
	cancel context.CancelFunc
	done   chan struct{}
	lease  *Lease
	err    error
}

// start asks in the background.
func (s *site) start(ctx context.Context, r *Request) *asked {
	ctx, cancel := context.WithCancel(ctx)
	a := &asked{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(a.done)
		a.lease, a.err = s.gate.Acquire(ctx, r)
	}()
	return a
}

// went reports whether it was let through. It is for bubbles.
func (a *asked) went() bool {
	synctest.Wait()
	select {
	case <-a.done:
		return a.err == nil
	default:
		return false
	}
}

// refused returns why it was refused, or "". It is for bubbles.
func (a *asked) refused() Reason {
	synctest.Wait()
	select {
	case <-a.done:
		if r, ok := errors.AsType[*RejectedError](a.err); ok {
			return r.Reason
		}
	default:
	}
	return ""
}

// atRest fails the test unless nothing is left in the gate or on a replica.
func (s *site) atRest(t rapid.TB) {
	t.Helper()
	s.gate.lock()
	defer s.gate.unlock()
	if len(s.gate.active) != 0 || len(s.gate.models) != 0 {
		t.Errorf("%d sets and %d models still wait", len(s.gate.active), len(s.gate.models))
	}
	for _, o := range s.gate.sets {
		if o.leases != 0 {
			t.Errorf("%d leases", o.leases)
		}
		for i := range o.lanes {
			if o.running[i] != 0 || o.standing[i] != 0 {
				t.Errorf("band %d: %d slots are in use, %d are waited for", i, o.running[i], o.standing[i])
			}
			if l := &o.lanes[i]; o.waiting != 0 || l.all() != 0 || l.tokens != 0 || len(l.turn) != 0 || len(l.flows) != 0 {
				t.Errorf("lane %d: %d wait, %+v", i, o.waiting, l)
			}
		}
		if len(o.kept) != 0 {
			t.Errorf("%d replicas are kept", len(o.kept))
		}
	}
	for r, h := range s.gate.holds {
		if h.w != nil {
			t.Errorf("%s is kept", r.ID)
		}
	}
	for _, e := range s.engines {
		if at := e.replica.Stats().At; !at.IsZero() {
			e.scrape() // the last one may have seen one that was about to end
		}
		if l := e.replica.Load(time.Now(), 0); e.replica.Inflight() != 0 || e.replica.PendingTokens() != 0 || l.Total != 0 {
			t.Errorf("%s: %d in flight, %d tokens, %v in all", e.replica.ID, e.replica.Inflight(), e.replica.PendingTokens(), l.Total)
		}
	}
}

// TestQ01_CancelAtTheGrant: a slot that is given in the moment in which its client
// leaves comes back.
func TestQ01_CancelAtTheGrant(t *testing.T) {
	s := strict(t, 1, 4)
	s.engines[0].took = 0
	var wg sync.WaitGroup
	for i := range 2000 {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() {
				for range rand.IntN(20) {
					runtime.Gosched() // to somewhere around the grant, which nobody sees from outside
				}
				if i%4 != 0 {
					cancel()
				}
			}()
			if lease, err := s.gate.Acquire(ctx, s.request("silver", fmt.Sprint(i%7))); err == nil {
				if i%3 == 0 {
					cancel()
				}
				lease.Placed()
				lease.Release(1)
				lease.Release(1)
			}
		})
	}
	wg.Wait()
	s.atRest(t)
	for range 4 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		lease, err := s.gate.Acquire(ctx, s.request("silver", "x"))
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		defer lease.Release(0)
	}
}

// TestLeavesAtTheGrant: a client that is gone when its request is let through counts as one
// that left.
func TestLeavesAtTheGrant(t *testing.T) {
	s := strict(t, 1, 1)
	var gone atomic.Int64
	s.gate.Refused = func(_, _ string, r Reason) {
		if r == ReasonGone {
			gone.Add(1)
		}
	}
	left := int64(0)
	for range 2000 {
		first, err := s.gate.Acquire(t.Context(), s.request("silver", "a"))
		if err != nil {
			t.Fatal(err)
		}
		a := s.start(t.Context(), s.request("silver", "b"))
		poll(t, func() bool { return s.gate.waiting.Load() == 1 })
		var wg sync.WaitGroup
		wg.Go(a.cancel)
		first.Release(1)
		wg.Wait()
		if <-a.done; a.err != nil {
			left++
		}
		a.lease.Release(1)
	}
	if gone.Load() != left {
		t.Errorf("%d left, counted %d", left, gone.Load())
	}
	s.atRest(t)
}

// TestQ03_OverflowAndClientsThatLeave: who leaves the queue reaches no engine, and
// what does not fit gets a clear answer.
func TestQ03_OverflowAndClientsThatLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := strict(t, 1, 1)
		bands := Bands()
		for i := range bands {
			bands[i].Ceiling, bands[i].Queue = 0.01, 20
		}
		s.configure(t, bands)
		counted := make(map[Reason]int)
		s.gate.Refused = func(_, band string, r Reason) {
			if band != "silver" {
				t.Errorf("band %q", band)
			}
			counted[r]++
		}
		first, err := s.gate.Acquire(t.Context(), s.request("silver", "a"))
		if err != nil {
			t.Fatal(err)
		}
		var all []*asked
		for range 20 {
			all = append(all, s.start(t.Context(), s.request("silver", "a")))
			synctest.Wait()
		}
		if r := s.start(t.Context(), s.request("silver", "a")); r.refused() != ReasonFull {
			t.Errorf("the 21st: %v, %v", r.lease, r.err)
		} else if refused, _ := errors.AsType[*RejectedError](r.err); refused.RetryAfter < time.Second {
			t.Errorf("Retry-After %v", refused.RetryAfter)
		}
		for _, a := range all[:10] {
			a.cancel()
			synctest.Wait()
			if !errors.Is(a.err, context.Canceled) {
				t.Errorf("one that left: %v", a.err)
			}
		}
		first.Release(0)
		if !all[10].went() {
			t.Error("the first that stayed did not go")
		}
		time.Sleep(s.model.Admission.QueueTTL)
		for i, a := range all[11:] {
			if r := a.refused(); r != ReasonTTL {
				t.Errorf("%d: %q, %v", i, r, a.err)
			}
		}
		all[10].lease.Release(0)
		s.atRest(t)
		if counted[ReasonFull] != 1 || counted[ReasonGone] != 10 || counted[ReasonTTL] != 9 || len(counted) != 3 {
			t.Errorf("counted %v", counted)
		}
	})
}

// TestQ04_LowBandsBehindASaturatedOne: a low band makes progress by aging, or gets
// a clear answer.
func TestQ04_LowBandsBehindASaturatedOne(t *testing.T) {
	for _, aging := range []time.Duration{0, 5 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			s := strict(t, 1, 2)
			bands := Bands()
			for i := range bands {
				bands[i].Ceiling, bands[i].Aging = 0.01, aging
			}
			s.configure(t, bands)
			ctx, stop := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			for range 6 {
				wg.Go(func() {
					for ctx.Err() == nil {
						if _, err := s.ask(ctx, "platinum", "p", false); err != nil && ctx.Err() == nil {
							t.Error(err)
							return
						}
					}
				})
			}
			time.Sleep(3 * time.Second)
			var went atomic.Int64
			for range 20 {
				wg.Go(func() {
					_, err := s.ask(t.Context(), "gold", "g", false)
					refused, ok := errors.AsType[*RejectedError](err)
					switch {
					case err == nil:
						went.Add(1)
					case !ok || refused.Reason != ReasonTTL && refused.Reason != ReasonDeadline:
						t.Errorf("not a clear answer: %v", err)
					}
				})
			}
			time.Sleep(time.Minute)
			// From 5 s on, until the others have waited for 30, two go each second.
			if n := went.Load(); aging == 0 && n != 0 || aging != 0 && (n < 4 || n > 6) {
				t.Errorf("aging %v: %d of 20 went", aging, n)
			}
			stop()
			wg.Wait()
			s.atRest(t)
		})
	}
}

// TestQ04_OneTenantsBurst: the one request of another tenant is the next to go.
func TestQ04_OneTenantsBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := strict(t, 1, 1)
		lease, err := s.gate.Acquire(t.Context(), s.request("silver", "x"))
		if err != nil {
			t.Fatal(err)
		}
		var burst []*asked
		for range 200 {
			burst = append(burst, s.start(t.Context(), s.request("silver", "x")))
			synctest.Wait()
		}
		one := s.start(t.Context(), s.request("silver", "y"))
		synctest.Wait()
		lease.Release(0)
		// At most one request of the burst may be before it: they are level.
		if !one.went() {
			if !burst[0].went() {
				t.Fatal("nobody went")
			}
			burst[0].lease.Release(0)
			if !one.went() {
				t.Fatal("it waits for the burst")
			}
		}
		one.lease.Release(0)
		for _, a := range burst {
			if a.went() {
				a.lease.Release(0)
			}
		}
		s.atRest(t)
	})
}

// TestNoReplica: without one a request is refused at once, or waits for one where
// the model says so.
func TestNoReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(1, 8, time.Second)
		r := s.engines[0].replica
		r.SetDraining(true)
		if a := s.start(t.Context(), s.request("platinum", "a")); a.refused() != ReasonNoReplica {
			t.Errorf("%v", a.err)
		}
		s.model.Admission.ReplicaWait = 10 * time.Second
		late, soon := s.start(t.Context(), s.request("platinum", "a")), s.start(t.Context(), s.request("platinum", "a"))
		if late.went() || soon.went() {
			t.Error("there is no replica to go to")
		}
		soon.cancel()
		time.Sleep(5 * time.Second)
		r.SetDraining(false)
		time.Sleep(tick)
		if !late.went() {
			t.Error("it does not see that there is a replica now")
		}
		late.lease.Release(0)
		r.SetDraining(true)
		last := s.start(t.Context(), s.request("platinum", "a"))
		time.Sleep(10 * time.Second)
		if last.refused() != ReasonNoReplica {
			t.Errorf("after all that it may wait: %v", last.err)
		}
		s.atRest(t)
	})
}
