package admit

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

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
