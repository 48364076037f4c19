package fleet

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/llmgw/llmgw/modules/schedule"
)

func fill(r *Replica, at time.Time) schedule.Replica {
	var c schedule.Replica
	r.Fill(&c, at, 0, 0)
	return c
}

func TestTakeIsACompareAndSwap(t *testing.T) {
	r := hold(t, newClock())
	first, ok := r.Take(0, 10)
	if !ok || r.Inflight() != 1 || r.PendingTokens() != 10 {
		t.Fatalf("taken %v, %d in flight, %d tokens", ok, r.Inflight(), r.PendingTokens())
	}
	late, ok := r.Take(0, 20)
	if ok || late.Held() || r.Inflight() != 1 || r.PendingTokens() != 10 {
		t.Fatal("a decision on what is over was taken")
	}
	late.Release() // nothing to give back
	second, ok := r.Take(1, 20)
	if !ok || r.Inflight() != 2 || r.PendingTokens() != 30 {
		t.Fatal("a decision on what is true was refused")
	}
	blind, ok := r.Take(-1, 5)
	if !ok || r.Inflight() != 3 {
		t.Fatal("a decision that does not care was refused")
	}
	for i, s := range []*Slot{&first, &second, &blind} {
		if !s.Held() {
			t.Errorf("slot %d is not held", i)
		}
		s.Release()
		s.Release()
		if s.Held() {
			t.Errorf("slot %d is held after its release", i)
		}
		if r.Inflight() != 2-i {
			t.Errorf("%d in flight after %d releases", r.Inflight(), i+1)
		}
	}
	if r.PendingTokens() != 0 {
		t.Errorf("%d tokens left", r.PendingTokens())
	}
	var zero Slot
	zero.Release()
	if zero.Held() {
		t.Error("the zero slot is held")
	}
}

// TestPrompts: the prompts of those whose answers have not begun are to be read; what is cached of them
// takes memory, and is no work.
func TestPrompts(t *testing.T) {
	r := hold(t, newClock())
	expect := func(prefill, pending int64) {
		t.Helper()
		if c := fill(r, time.Now()); c.PrefillTokens != prefill || c.PendingTokens != pending || r.PendingTokens() != pending {
			t.Errorf("%d tokens to be read, %d pending, want %d and %d", c.PrefillTokens, c.PendingTokens, prefill, pending)
		}
	}
	a, _ := r.Take(-1, 1000)
	b, _ := r.Take(-1, 1000)
	a.Prompt(100, 800)
	b.Prompt(70, 0)
	expect(170, 1200)
	a.Prompt(120, 700)
	expect(190, 1300)
	a.Alive()
	a.Alive()
	expect(70, 1300)
	a.Prompt(5, 700) // it has been read
	expect(70, 1300)
	a.Release()
	expect(70, 1000)
	b.Release()
	expect(0, 0)
	b.Prompt(5, 5)
	expect(0, 0)
}

// Half of the requests abort, some of them twice, from any goroutine: at rest
// every counter is 0, and new requests find the fleet even.
func TestR01_CountersAreZeroAtRest(t *testing.T) {
	f := New(nil)
	var replicas []*Replica
	for _, address := range []string{"gpu1:8000", "gpu2:8000", "gpu3:8000"} {
		r, release := f.Hold(mustURL(t, address))
		defer release()
		replicas = append(replicas, r)
	}
	var wg sync.WaitGroup
	for worker := range 300 {
		wg.Go(func() {
			r := replicas[worker%len(replicas)]
			slot, ok := r.Take(r.Inflight(), int64(rand.IntN(5000)))
			for !ok {
				slot, ok = r.Take(r.Inflight(), int64(rand.IntN(5000)))
			}
			if r.Inflight() < 1 {
				t.Errorf("%d in flight while one is held", r.Inflight())
			}
			slot.Prompt(int64(rand.IntN(5000)), int64(rand.IntN(100)))
			if rand.IntN(2) == 0 {
				slot.Alive()
			}
			slot.Release()
			if rand.IntN(2) == 0 {
				slot.Release() // the close after an abort
			}
		})
	}
	wg.Wait()
	for _, r := range replicas {
		if c := fill(r, time.Now()); r.Inflight() != 0 || r.PendingTokens() != 0 || c.PrefillTokens != 0 {
			t.Errorf("%s has %d in flight, %d tokens, %d of them to be read, at rest", r.ID, r.Inflight(), r.PendingTokens(), c.PrefillTokens)
		}
	}
	replicas[1].Restarted()
	counts := make([]int, len(replicas))
	for range 90 {
		best := 0
		for i, r := range replicas {
			if r.Inflight() < replicas[best].Inflight() {
				best = i
			}
		}
		replicas[best].Take(replicas[best].Inflight(), 1)
		counts[best]++
	}
	for i, n := range counts {
		if n != 30 {
			t.Errorf("replica %d got %d of 90 requests", i, n)
		}
	}
}

// Any mix of takes and releases leaves what the slots that are held add up to.
func TestCountersProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		u, err := ParseURL("gpu1:8000")
		if err != nil {
			t.Fatal(err)
		}
		r, release := New(nil).Hold(u)
		defer release()
		type held struct {
			slot   Slot
			tokens int64
		}
		var slots []*held
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				seen := rapid.IntRange(-1, 5).Draw(t, "seen")
				tokens := rapid.Int64Range(0, 1000).Draw(t, "tokens")
				want := seen < 0 || seen == len(slots)
				slot, ok := r.Take(seen, tokens)
				if ok != want || slot.Held() != want {
					t.Fatalf("taken: %v, want %v", ok, want)
				}
				if ok {
					slots = append(slots, &held{slot, tokens})
				}
			},
			"release": func(t *rapid.T) {
				if len(slots) == 0 {
					return
				}
				i := rapid.IntRange(0, len(slots)-1).Draw(t, "which")
				slots[i].slot.Release()
				slots = append(slots[:i], slots[i+1:]...)
			},
			"": func(t *rapid.T) {
				sum := int64(0)
				for _, h := range slots {
					sum += h.tokens
				}
				if r.Inflight() != len(slots) || r.PendingTokens() != sum {
					t.Fatalf("%d in flight and %d tokens, want %d and %d", r.Inflight(), r.PendingTokens(), len(slots), sum)
				}
			},
		})
	})
}

// A scrape that is older than 5 s says nothing any more; what llmgw counts
// itself stays.
func TestR07_OldStatsAreUnknown(t *testing.T) {
	c := newClock()
	r := hold(t, c)
	if got := fill(r, c.now()); got.Waiting.Known() || got.Running.Known() || got.KVUsage.Known() || got.BatchCapacity.Known() || got.DrainRate.Known() {
		t.Errorf("a replica that was never asked: %+v", got)
	}
	r.SetStats(&Stats{At: c.now(), Waiting: 2, Running: 2, KVUsage: 0.5})
	slot, _ := r.Take(0, 9)
	defer slot.Release()
	c.advance(StatsMaxAge)
	if got := fill(r, c.now()); got.Waiting != 3 || got.Running != 2 || got.KVUsage != 0.5 {
		t.Errorf("at 5 s: %+v", got)
	}
	c.advance(time.Nanosecond)
	got := fill(r, c.now())
	if got.Waiting.Known() || got.Running.Known() || got.KVUsage.Known() {
		t.Errorf("after 5 s: %+v", got)
	}
	if got.Inflight != 1 || got.PendingTokens != 9 || got.BatchCapacity != 2 {
		t.Errorf("own counts after 5 s: %+v", got)
	}
}

func TestStaleStats(t *testing.T) {
	c := newClock()
	r := hold(t, c)
	r.SetStats(&Stats{At: c.now(), Waiting: 1, Running: 2, KVUsage: 0.5, Failed: "timeout"})
	if got := fill(r, c.now()); !got.Stale || got.Waiting != 1 {
		t.Errorf("after a failed scrape: %+v", got)
	}
	r.SetStats(&Stats{At: c.now(), Waiting: 2, Running: 2, KVUsage: 0.5})
	if got := fill(r, c.now()); got.Stale || got.Waiting != 2 {
		t.Errorf("after a good one: %+v", got)
	}
	if r.Stats().Waiting != 2 {
		t.Errorf("stats %+v", r.Stats())
	}
}

func TestBatchCapacityIsTheHighWaterMark(t *testing.T) {
	c := newClock()
	r := hold(t, c)
	for _, step := range []struct{ waiting, running, want schedule.Gauge }{
		// An engine in which nothing waits says nothing of what it could run.
		{0, 9, schedule.Unknown},
		{schedule.Unknown, 9, schedule.Unknown},
		{2, 0, schedule.Unknown},
		{2, schedule.Unknown, schedule.Unknown},
		// A few may wait for the next step of an engine that runs many.
		{1, 4, schedule.Unknown},
		{7, 64, schedule.Unknown},
		// While the prompts of a burst are read few run; many did before.
		{5, 1, 64},
		{0, 64, 64},
		{0, 66, schedule.Unknown}, // it can run more than that: how many more?
		{20, 70, 70},
		{3, 2, 70},
		{1, schedule.Unknown, 70},
		{1, 81, 81},
		{1, 0, 81},
	} {
		r.SetStats(&Stats{At: c.now(), Waiting: step.waiting, Running: step.running})
		got := fill(r, c.now()).BatchCapacity
		if got.Known() != step.want.Known() || step.want.Known() && got != step.want {
			t.Errorf("after %v waiting and %v running: batch capacity %v, want %v", step.waiting, step.running, got, step.want)
		}
	}
	r.Restarted()
	if got := fill(r, c.now()); got.BatchCapacity.Known() || got.Running.Known() {
		t.Errorf("after a restart: %+v", got)
	}
	// No claim of an engine goes beyond what a number can hold.
	for _, absurd := range []schedule.Gauge{math.MaxFloat64, 1e19} {
		r.SetStats(&Stats{At: c.now(), Waiting: absurd, Running: absurd})
		if got := fill(r, c.now()).BatchCapacity; got != math.MaxInt32 {
			t.Errorf("after %v running: batch capacity %v", absurd, got)
		}
	}
}

func TestDrainRate(t *testing.T) {
	c := newClock()
	r := hold(t, c)
	rate := func(want float64) {
		t.Helper()
		got := fill(r, c.now()).DrainRate
		if math.IsNaN(want) {
			if got.Known() {
				t.Errorf("rate %v, want unknown", got)
			}
			return
		}
		if !(math.Abs(float64(got)-want) < 1e-6) {
			t.Errorf("rate %v, want %v", got, want)
		}
	}
	complete := func(n int) {
		for range n {
			r.Completed()
		}
	}
	rate(math.NaN())
	c.advance(time.Second)
	complete(4)
	rate(4) // 4 in the first second
	complete(100)
	rate(4) // one reading per second is enough
	c.advance(time.Second)
	rate(52) // 104 in 2 s
	for range 8 {
		c.advance(time.Second)
		complete(2)
	}
	c.advance(time.Second)
	rate(120. / 11)
	c.advance(20 * time.Second) // the first second is 30 s ago
	rate(16. / 30)
	c.advance(8 * time.Second) // the last one counts still
	rate(2. / 30)
	c.advance(time.Second)
	rate(math.NaN())
	complete(3)
	c.advance(time.Second)
	rate(0.1) // over the whole window, once there is one
}

// A clock that is set back must not make a negative rate of what was counted.
func TestDrainRateAfterTheClockWasSetBack(t *testing.T) {
	c := newClock()
	r := hold(t, c)
	r.Completed()
	c.advance(-time.Hour)
	r.Completed()
	c.advance(time.Second)
	if got := fill(r, c.now()).DrainRate; got.Known() && !(got > 0) {
		t.Errorf("rate %v", got)
	}
}

func TestReplicaConcurrently(t *testing.T) {
	c := newClock()
	r := hold(t, c)
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for i := range 300 {
				switch (worker + i) % 4 {
				case 0:
					r.SetStats(&Stats{At: c.now(), Running: schedule.Gauge(i), Waiting: 1, KVUsage: 0.5})
				case 1:
					if got := fill(r, c.now()); got.Inflight < 0 || got.DrainRate < 0 {
						t.Errorf("filled %+v", got)
					}
				case 2:
					r.Completed()
					c.advance(time.Millisecond)
				case 3:
					r.SetModels([]string{"a"})
					r.Models()
				}
			}
		})
	}
	wg.Wait()
	if got := fill(r, c.now()); got.BatchCapacity < 290 {
		t.Errorf("batch capacity %v", got.BatchCapacity)
	}
}

func BenchmarkFill64(b *testing.B) {
	f := New(nil)
	var replicas []*Replica
	for i := range 64 {
		u, err := ParseURL(fmt.Sprintf("gpu%d:8000", i))
		if err != nil {
			b.Fatal(err)
		}
		r, release := f.Hold(u)
		defer release()
		r.Completed()
		r.SetStats(&Stats{At: time.Now(), Running: 3})
		replicas = append(replicas, r)
	}
	candidates := make([]schedule.Replica, len(replicas))
	now := time.Now()
	b.ReportAllocs()
	for b.Loop() {
		for i, r := range replicas {
			r.Fill(&candidates[i], now, 0, 0)
		}
	}
}
