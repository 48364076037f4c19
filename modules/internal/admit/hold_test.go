package admit

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llmgw/llmgw/modules/internal/fleet"
)

// stream asks again and again, without waiting for the answer before, each of which runs
// for so long. It returns how many went and how many were refused.
func (s *site) stream(ctx context.Context, r Request, every, runs time.Duration) (went, refused *atomic.Int64) {
	went, refused = new(atomic.Int64), new(atomic.Int64)
	go func() {
		for ; ctx.Err() == nil; time.Sleep(every) {
			go func() {
				l, err := s.gate.Acquire(ctx, &r)
				if err != nil {
					refused.Add(1)
					return
				}
				went.Add(1)
				time.Sleep(runs)
				l.Release(50)
			}()
		}
	}()
	return went, refused
}

// steady keeps so many requests of platinum running, each with so many tokens.
func (s *site) steady(ctx context.Context, n int, tokens int64) {
	for range n {
		time.Sleep(time.Second / time.Duration(n))
		r := *s.request("platinum", "p")
		r.Prompt = tokens - r.Output
		s.stream(ctx, r, time.Second, 999*time.Millisecond)
	}
}

// memory keeps saying that the replica's cache holds so many tokens, and has none of others.
func (s *site) memory(ctx context.Context, holds int) {
	r := s.engines[0].replica
	for ; ctx.Err() == nil; time.Sleep(time.Second) {
		r.SetStats(&fleet.Stats{At: time.Now(), Waiting: 0, Running: 0, KVUsage: 0, BlockSize: 10, Blocks: holds / 10})
	}
}

// TestStreamsOfLargeOnes: a client whose requests do not fit beside those of a higher band,
// one after the other, does not stop its band or the lower ones.
func TestStreamsOfLargeOnes(t *testing.T) {
	for name, tt := range map[string]struct {
		platinum int
		large    func(*Request)
		least    int64 // that go in three minutes
	}{
		"slots that never come": {6, func(r *Request) { r.Sequences = 8 }, 0},
		"slots, of five left":   {3, func(r *Request) { r.Sequences = 8 }, 30},
		"tokens":                {5, func(r *Request) { r.Prompt = 6000 }, 0},
	} {
		for _, every := range []time.Duration{5 * time.Second, 30 * time.Second} {
			t.Run(fmt.Sprint(name, every), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ctx, stop := context.WithCancel(t.Context())
					s := strict(t, 1, 8)
					go s.memory(ctx, 10_000)
					time.Sleep(time.Millisecond)
					s.steady(ctx, tt.platinum, 1000)
					time.Sleep(5 * time.Second)
					r := *s.request("silver", "large")
					tt.large(&r)
					large, _ := s.stream(ctx, r, every, time.Second)
					time.Sleep(time.Minute)
					silver, silverRefused := s.stream(ctx, *s.request("silver", "s"), time.Second, time.Second/2)
					bronze, bronzeRefused := s.stream(ctx, *s.request("bronze", "b"), time.Second, time.Second/2)
					time.Sleep(2 * time.Minute)
					if silver.Load() < 110 || bronze.Load() < 105 || silverRefused.Load()+bronzeRefused.Load() > 0 {
						t.Errorf("of 120 each: silver %d went, %d refused, bronze %d went, %d refused",
							silver.Load(), silverRefused.Load(), bronze.Load(), bronzeRefused.Load())
					}
					if every == 5*time.Second && large.Load() < tt.least {
						t.Errorf("%d large ones went", large.Load())
					}
					stop()
					time.Sleep(time.Minute)
					s.atRest(t)
				})
			})
		}
	}
}

// TestStreamThatCannotGo: one model's requests, which wait for what never comes, do not
// stop those of another with the same replicas, of no band.
func TestStreamThatCannotGo(t *testing.T) {
	for _, band := range []string{"platinum", "silver"} {
		synctest.Test(t, func(t *testing.T) {
			s := newSite(1, 8, time.Second)
			s.model.Endpoints[0].Slots, s.model.TargetWaiting = 8, 20
			careful := s.other(0, 1)
			careful.TargetWaiting = 2
			ctx, stop := context.WithCancel(t.Context())
			go func() { // another gateway keeps it so
				for ; ctx.Err() == nil; time.Sleep(time.Second / 2) {
					s.engines[0].replica.SetStats(&fleet.Stats{At: time.Now(), Waiting: 3, Running: 8, KVUsage: 0})
				}
			}()
			time.Sleep(time.Second)
			s.stream(ctx, *s.request("silver", "b"), time.Second, 100*time.Millisecond)
			time.Sleep(3 * time.Second)
			r := *s.request(band, "a")
			r.Model = careful
			never, _ := s.stream(ctx, r, time.Second, time.Second)
			time.Sleep(45 * time.Second)
			went, refused := s.stream(ctx, *s.request("silver", "b"), time.Second, 100*time.Millisecond)
			time.Sleep(2 * time.Minute)
			if never.Load() > 0 {
				t.Fatalf("%s: %d went that cannot", band, never.Load())
			}
			if went.Load() < 105 || refused.Load() > 0 {
				t.Errorf("beside %s: of 120 %d went, %d refused", band, went.Load(), refused.Load())
			}
			stop()
			time.Sleep(time.Minute)
			s.atRest(t)
		})
	}
}

// TestWideBeforeAnyEnded: while nobody knows how long requests take, one of many slots lets
// others pass, too.
func TestWideBeforeAnyEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := strict(t, 1, 8)
		var all []*asked
		for range 6 {
			all = append(all, s.start(t.Context(), s.request("silver", "x")))
		}
		synctest.Wait()
		wide := s.request("silver", "a")
		wide.Sequences = 8
		w := s.start(t.Context(), wide)
		if w.went() {
			t.Fatal("there is no room for it")
		}
		time.Sleep(10 * time.Millisecond)
		all = append(all, s.start(t.Context(), s.request("silver", "b")), s.start(t.Context(), s.request("bronze", "b")))
		for i, a := range all {
			if !a.went() {
				t.Fatalf("%d waits, with a slot free", i)
			}
			a.lease.Release(-1)
		}
		if !w.went() {
			t.Error("it does not go to an idle replica")
		}
		w.lease.Release(-1)
		s.atRest(t)
	})
}

// TestAgingPastLargeOnes: a band whose oldest waits for more than there ever is makes
// progress all the same.
func TestAgingPastLargeOnes(t *testing.T) {
	for name, large := range map[string]func(*Request){
		"slots":  func(r *Request) { r.Sequences = 16 },
		"tokens": func(r *Request) { r.Prompt = 9000 },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				s := strict(t, 1, 8)
				bands := Bands()
				for i := range bands {
					bands[i].Ceiling, bands[i].Aging = 0.01, 3*time.Second
				}
				s.configure(t, bands)
				s.model.Admission.QueueTTL = time.Hour
				go s.memory(ctx, 10_000)
				time.Sleep(time.Millisecond)
				for range 12 {
					time.Sleep(time.Second / 12)
					s.stream(ctx, *s.request("silver", "s"), time.Second, time.Second)
				}
				time.Sleep(5 * time.Second)
				r := *s.request("bronze", "big")
				large(&r)
				s.stream(ctx, r, time.Minute, time.Second)
				time.Sleep(time.Second)
				small, _ := s.stream(ctx, *s.request("bronze", "small"), time.Second, time.Second)
				time.Sleep(time.Minute)
				if small.Load() < 20 { // of the 40 or so that a tenth of eight a second is
					t.Errorf("%d of bronze went in a minute", small.Load())
				}
				stop()
				time.Sleep(time.Minute)
				s.atRest(t)
			})
		})
	}
}

// TestDemandOutlivesAnOutage: what higher bands ask for while no replica takes work is not
// what they need at once.
func TestDemandOutlivesAnOutage(t *testing.T) {
	for _, full := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			s := strict(t, 2, 8)
			s.model.Admission.ReplicaWait = 10 * time.Second
			s.stream(ctx, *s.request("platinum", "p"), 300*time.Millisecond, 400*time.Millisecond)
			time.Sleep(20 * time.Second)
			headroom := func() float64 { return s.gate.Explain(s.request("silver", "s")).Headroom }
			before := headroom()
			for _, e := range s.engines {
				if full {
					slot, _ := e.replica.Take(-1, 1)
					slot.Refused("answered 503", 8*time.Second, time.Minute)
					slot.Release()
				} else {
					e.replica.SetDraining(true)
					time.AfterFunc(8*time.Second, func() { e.replica.SetDraining(false) })
				}
			}
			time.Sleep(15 * time.Second)
			if after := headroom(); before < 1 || after > before+1 {
				t.Errorf("full %v: silver leaves %v slots free, before %v", full, after, before)
			}
			stop()
			time.Sleep(time.Minute)
			s.atRest(t)
		})
	}
}

// TestManyBands: what one waits for is found without looking at each way there is to it.
func TestManyBands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := strict(t, 1, 8)
		var bands []Band
		for i := range MaxBands {
			b := NewBand(fmt.Sprint("b", i))
			b.Priority, b.Ceiling = -i, 0.01
			bands = append(bands, b)
		}
		s.configure(t, bands)
		ctx, stop := context.WithCancel(t.Context())
		for range 8 {
			s.stream(ctx, *s.request("b0", "x"), time.Second, time.Second)
			time.Sleep(time.Second / 8)
		}
		for i := range bands {
			r := *s.request(bands[i].Name, "wide")
			r.Sequences = 4
			s.stream(ctx, r, time.Hour, time.Second)
		}
		time.Sleep(time.Minute)
		stop()
		time.Sleep(time.Hour)
		s.atRest(t)
	})
}
