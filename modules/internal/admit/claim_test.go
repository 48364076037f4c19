package admit

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llmgw/llmgw/modules/internal/fleet"
	"github.com/llmgw/llmgw/modules/schedule"
)

// TestSmallBesideTiny: a request that takes little of a cache has its turn as usual, however
// little others take.
func TestSmallBesideTiny(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		s := strict(t, 1, 1000)
		s.model.Admission.MaxQueued = 100_000
		go s.memory(ctx, 10_000)
		time.Sleep(time.Millisecond)
		tiny := *s.request("silver", "tiny")
		tiny.Prompt, tiny.Output = 10, 0
		s.stream(ctx, tiny, time.Millisecond, time.Second) // as much as fits, and more
		time.Sleep(10 * time.Second)
		small := *s.request("silver", "small")
		small.Prompt, small.Output = 400, 0
		went, _ := s.stream(ctx, small, time.Second/20, time.Second)
		time.Sleep(20 * time.Second)
		if went.Load() < 150 { // half of the tokens are some ten of it a second
			t.Errorf("%d of the small ones went in 20 s", went.Load())
		}
		stop()
		time.Sleep(time.Minute)
		s.atRest(t)
	})
}

// TestUsualOnesAreNotPassed: where requests of a band take much of a cache each, lower bands
// wait for them, as they do for others.
func TestUsualOnesAreNotPassed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		s := strict(t, 1, 8)
		go s.memory(ctx, 10_000)
		time.Sleep(time.Millisecond)
		usual := *s.request("silver", "s")
		usual.Prompt, usual.Output = 2500, 0
		s.stream(ctx, usual, 200*time.Millisecond, time.Second) // three run at once, five come
		time.Sleep(20 * time.Second)
		bronze, _ := s.stream(ctx, *s.request("bronze", "b"), time.Second, time.Second)
		time.Sleep(time.Minute)
		if bronze.Load() > 10 {
			t.Errorf("%d of bronze go before those of silver", bronze.Load())
		}
		stop()
		time.Sleep(time.Minute)
		s.atRest(t)
	})
}

// TestDeepQueues: a model that lets engines be less full has its turn although the queues of
// another one in them take longer than a request does.
func TestDeepQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(1, 1, time.Second)
		s.model.Endpoints[0].Slots, s.model.TargetWaiting = 1, 10
		careful := s.other(0, 1)
		careful.TargetWaiting = 1
		ctx, stop := context.WithCancel(t.Context())
		go s.scrapes(ctx)
		var done atomic.Int64
		for i := range 40 {
			r := *s.request("silver", "a")
			if i%2 == 1 {
				r.Model = careful
			}
			go func() {
				for ctx.Err() == nil {
					lease, err := s.gate.Acquire(ctx, &r)
					if err != nil {
						time.Sleep(time.Second)
						continue
					}
					_, slot := s.pick()
					lease.Placed()
					s.engines[0].serve()
					slot.Release()
					lease.Release(50)
					if r.Model == careful {
						done.Add(1)
					}
				}
			}()
		}
		time.Sleep(5 * time.Minute)
		if done.Load() < 5 {
			t.Errorf("%d of the careful one went in five minutes", done.Load())
		}
		stop()
		time.Sleep(time.Hour)
		s.atRest(t)
	})
}

// TestAgingOfLargeOnes: an aged band's request of many sequences goes where it can, though it
// was set aside.
func TestAgingOfLargeOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		s := strict(t, 1, 8)
		bands := Bands()
		for i := range bands {
			bands[i].Ceiling, bands[i].Aging = 0.01, 3*time.Second
		}
		bands[0].Ceiling = 1
		s.configure(t, bands)
		s.model.Admission.QueueTTL = time.Hour
		for range 12 {
			time.Sleep(time.Second / 12)
			s.stream(ctx, *s.request("silver", "s"), time.Second, time.Second)
		}
		time.Sleep(5 * time.Second)
		r := *s.request("bronze", "wide")
		r.Sequences = 2
		went, _ := s.stream(ctx, r, time.Second, time.Second)
		time.Sleep(time.Minute)
		if went.Load() < 15 {
			t.Errorf("%d of bronze went in a minute", went.Load())
		}
		stop()
		time.Sleep(time.Minute)
		s.atRest(t)
	})
}

// TestAlone: a request that goes to an idle replica only waits for one, in a band that never
// waits for anything else, too, and is passed meanwhile.
func TestAlone(t *testing.T) {
	for _, band := range []string{"silver", "always"} {
		synctest.Test(t, func(t *testing.T) {
			s := strict(t, 1, 8)
			always := NewBand("always")
			always.Priority, always.Ceiling = 1000, Unlimited
			s.configure(t, append(Bands(), always))
			first := s.start(t.Context(), s.request("silver", "x"))
			synctest.Wait()
			r := s.request(band, "a")
			r.Sequences, r.Alone = 2, true
			w := s.start(t.Context(), r)
			if !first.went() || w.went() {
				t.Fatalf("%s: the first %v, the other %v", band, first.went(), w.went())
			}
			time.Sleep(500 * time.Millisecond)
			if next := s.start(t.Context(), s.request("silver", "y")); !next.went() {
				t.Errorf("%s: others wait for it", band)
			} else {
				next.lease.Release(1)
			}
			time.Sleep(3 * time.Second) // it would go with half of its slots by now
			if w.went() {
				t.Errorf("%s: it goes beside another", band)
			}
			first.lease.Release(1)
			if !w.went() || !w.lease.Alone() {
				t.Errorf("%s: it does not go to an idle replica", band)
			}
			if room := w.lease.Room(s.model.Endpoints[0], s.engines[0].replica.Load(time.Now(), 8), 4); room != schedule.RoomNone {
				t.Errorf("%s: beside others there is room for it: %v", band, room)
			}
			leave(w)
			s.atRest(t)
		})
	}
}

// TestChargeForWhatWasKept: a tenant pays for the replica that was kept for its request as many
// others would have, of an engine of which nobody knows how many it runs, too, or which has
// more slots than memory.
func TestChargeForWhatWasKept(t *testing.T) {
	for _, slots := range []int{0, 10, 256} { // its memory suffices for eight
		synctest.Test(t, func(t *testing.T) {
			s := strict(t, 1, slots)
			ctx, stop := context.WithCancel(t.Context())
			go s.memory(ctx, 10_000)
			time.Sleep(time.Millisecond)
			s.busyClients(ctx, 16, func(_ int, rnd *rand.Rand) (*Request, time.Duration, time.Duration) {
				r := s.request("silver", "b")
				r.Prompt = 950
				return r, time.Second/2 + time.Duration(rnd.Int64N(int64(time.Second))), 0
			})
			time.Sleep(10 * time.Second)
			r := s.request("silver", "a")
			r.Prompt = 5000
			large := s.start(ctx, r)
			for range 300 {
				if time.Sleep(100 * time.Millisecond); large.went() {
					break
				}
			}
			if large.err != nil || !large.went() {
				t.Fatalf("%d slots: the large one: %v", slots, large.err)
			}
			large.lease.Release(50)
			r.Prompt = 950
			began := time.Now()
			next := s.start(ctx, r)
			for range 300 {
				if time.Sleep(100 * time.Millisecond); next.went() {
					break
				}
			}
			if next.err != nil || time.Since(began) > 5*time.Second {
				t.Errorf("%d slots: its next one: %v after %v", slots, next.err, time.Since(began))
			}
			if next.lease != nil {
				next.lease.Release(50)
			}
			stop()
			time.Sleep(time.Minute)
			s.atRest(t)
		})
	}
}

// TestNoChargeForWhatNobodyKnows: what was kept of an engine of which nobody knows how much it is
// costs nothing.
func TestNoChargeForWhatNobodyKnows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := strict(t, 1, 0)
		r := s.engines[0].replica
		say := func() { // what waits does so for memory
			r.SetStats(&fleet.Stats{At: time.Now(), Waiting: 2, Running: 6, KVUsage: 0.95})
		}
		slot, _ := r.Take(-1, 1)
		slot.Sequences(3)
		say()
		ask := func(tenant string, n int64) *asked {
			r := s.request("silver", tenant)
			r.Holds, r.Sequences = false, n
			a := s.start(t.Context(), r)
			synctest.Wait()
			return a
		}
		wide := ask("a", 2)
		others := []*asked{ask("b", 1), ask("b", 1)}
		for range 3 { // a replica is kept for the first by then
			time.Sleep(time.Second)
			say()
		}
		if len(s.gate.holds) == 0 {
			t.Fatal("none is kept")
		}
		slot.Release()
		time.Sleep(100 * time.Millisecond)
		if !wide.went() {
			t.Fatal("it waits")
		}
		s.gate.lock()
		for _, o := range s.gate.sets {
			for i := range o.lanes {
				for tenant, f := range o.lanes[i].flows {
					if !(f.next < 1e6) {
						t.Errorf("%s is charged up to %v", tenant, f.next)
					}
				}
			}
		}
		s.gate.unlock()
		for _, a := range append(others, wide) {
			leave(a)
		}
	})
}
