package admit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

// busyClients ask again and again, each after its last answer; some takes a request and
// returns for how long it runs and how long the client waits then.
func (s *site) busyClients(ctx context.Context, n int, some func(i int, rnd *rand.Rand) (r *Request, runs, pause time.Duration)) {
	for i := range n {
		go func() {
			rnd := rand.New(rand.NewPCG(3, uint64(i)))
			for ctx.Err() == nil {
				r, runs, pause := some(i, rnd)
				l, err := s.gate.Acquire(ctx, r)
				if err != nil {
					time.Sleep(time.Second)
					continue
				}
				time.Sleep(runs)
				l.Release(50)
				time.Sleep(pause)
			}
		}()
	}
}

// TestNothingIdles: while requests wait that are all alike in what they need, no slot is
// free, with tenants that come and go, and models that share the replicas.
func TestNothingIdles(t *testing.T) {
	for _, models := range []int{1, 2} {
		for _, engines := range []int{1, 4} {
			synctest.Test(t, func(t *testing.T) {
				s := strict(t, engines, 4)
				s.model.Admission.QueueTTL = time.Hour
				other := s.model
				if models == 2 {
					other = s.other(0, engines)
				}
				ctx, stop := context.WithCancel(t.Context())
				s.busyClients(ctx, 16*engines, func(i int, rnd *rand.Rand) (*Request, time.Duration, time.Duration) {
					r := s.request("silver", fmt.Sprint("t", i%6))
					if i%2 == 1 {
						r.Model = other
					}
					r.Prompt, r.Holds = int64(10+rnd.IntN(1000)*(i%3)), false
					pause := time.Duration(max(0, rnd.IntN(9000)-6000)) * time.Millisecond
					return r, time.Duration(200+rnd.IntN(1600)) * time.Millisecond, pause
				})
				for range 3000 {
					time.Sleep(100 * time.Millisecond)
					synctest.Wait()
					if v := s.gate.Explain(s.request("silver", "zz")); s.gate.waiting.Load() > 0 && v.Free > 0 {
						t.Fatalf("%d models, %d engines: %v slots are free and requests wait", models, engines, v.Free)
					}
				}
				stop()
				time.Sleep(2 * time.Hour)
				s.atRest(t)
			})
		}
	}
}

// TestNewcomerBeforeTheHolder: a replica that is kept for the head of a lane is there for a
// newcomer that is before it.
func TestNewcomerBeforeTheHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, lease := patient(t, func(*Band) {})
		r := s.request("silver", "z")
		r.Model = s.other(0, 1)
		s.gate.Explain(r) // a neighbour
		ask := func(tenant string, prompt int64) *asked {
			r := s.request("silver", tenant)
			r.Prompt, r.Output = prompt, 0
			a := s.start(t.Context(), r)
			a.went()
			return a
		}
		time.Sleep(time.Second)
		first, second := ask("A", 1000), ask("C", 10)
		head := ask("A", 1000)
		for _, a := range []*asked{first, second} {
			lease.Release(1)
			if !a.went() {
				t.Fatal("it is its turn")
			}
			time.Sleep(time.Second)
			lease = a.lease
		}
		b := ask("B", 10)
		time.Sleep(100 * time.Millisecond)
		lease.Release(1)
		if !b.went() {
			t.Fatalf("the newcomer goes: %v, the head: %v", b.went(), head.went())
		}
		b.lease.Release(1)
		if !head.went() {
			t.Error("the head waits")
		}
		leave(head)
		s.atRest(t)
	})
}

// TestWideBesideLongOnes: requests of many sequences go although some of those that run take
// much longer than most.
func TestWideBesideLongOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := strict(t, 1, 8)
		ctx, stop := context.WithCancel(t.Context())
		go s.memory(ctx, 1_000_000)
		s.busyClients(ctx, 20, func(_ int, rnd *rand.Rand) (*Request, time.Duration, time.Duration) {
			runs := 200 * time.Millisecond
			if rnd.IntN(10) == 0 {
				runs = 8 * time.Second
			}
			return s.request("silver", "s"), runs, 0
		})
		time.Sleep(30 * time.Second)
		r := *s.request("silver", "wide")
		r.Sequences = 8
		went, _ := s.stream(ctx, r, 10*time.Second, time.Second)
		time.Sleep(10 * time.Minute)
		if went.Load() < 25 {
			t.Errorf("of 60 %d went", went.Load())
		}
		stop()
		time.Sleep(time.Hour)
		s.atRest(t)
	})
}

// TestAfterOneThatNeverGoes: what was kept in vain for long costs those that come later
// nothing.
func TestAfterOneThatNeverGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		s := strict(t, 1, 8)
		go s.memory(ctx, 1_000_000)
		before, end := context.WithCancel(ctx)
		s.steady(before, 6, 100)
		r := *s.request("silver", "never")
		r.Sequences = 8
		s.stream(before, r, 5*time.Second, time.Second)
		time.Sleep(10 * time.Minute)
		end()
		time.Sleep(40 * time.Second)
		s.busyClients(ctx, 20, func(_ int, rnd *rand.Rand) (*Request, time.Duration, time.Duration) {
			return s.request("silver", "s"), time.Duration(500+rnd.IntN(1000)) * time.Millisecond, 0
		})
		r.Tenant = "good"
		went, refused := s.stream(ctx, r, 10*time.Second, time.Second)
		time.Sleep(5 * time.Minute)
		if went.Load() < 28 || refused.Load() > 0 {
			t.Errorf("of 30 %d went, %d refused", went.Load(), refused.Load())
		}
		stop()
		time.Sleep(time.Hour)
		s.atRest(t)
	})
}
