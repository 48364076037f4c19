package admit

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llmgw/llmgw/modules/internal/fleet"
	"github.com/llmgw/llmgw/modules/schedule"
)

// TestTokens: what does not fit waits, and what never will is refused.
func TestTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(1, 8, time.Second)
		r := s.engines[0].replica
		stats := func(usage float64) {
			r.SetStats(&fleet.Stats{At: time.Now(), Waiting: 0, Running: 0, KVUsage: schedule.Gauge(usage), BlockSize: 16, Blocks: 100})
		}
		stats(0)
		big := s.request("platinum", "a")
		big.Prompt, big.Output, big.Least, big.Holds = 1500, 101, 1601, true
		_, err := s.gate.Acquire(t.Context(), big)
		if r, ok := errors.AsType[*RejectedError](err); !ok || r.Reason != ReasonTooLarge || r.Room != 1600 {
			t.Errorf("larger than any replica: %v", err)
		}
		big.Output, big.Least = 100, 1600 // it fits one that is idle, the reserve notwithstanding
		lease, err := s.gate.Acquire(t.Context(), big)
		if err != nil {
			t.Fatal(err)
		}
		next := s.start(t.Context(), s.request("platinum", "a"))
		if next.went() {
			t.Error("two go into the room of one")
		}
		lease.Release(0)
		if !next.went() {
			t.Error("it does not go into the room that there is")
		}
		next.lease.Release(0)
		s.atRest(t)
	})
}

// TestTokensAreLeftForHigherBands: where memory is what is short, lower bands leave
// as much of it as higher ones need.
func TestTokensAreLeftForHigherBands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(1, 0, time.Second)
		s.model.Endpoints[0].Slots = 1000
		r := s.engines[0].replica
		var running []*Lease
		stats := func() {
			r.SetStats(&fleet.Stats{At: time.Now(), Waiting: 0, Running: 0, KVUsage: 0, BlockSize: 10, Blocks: 1000})
		}
		stats()
		ask := func(band string) *Lease {
			a := s.start(t.Context(), &Request{Model: s.model, Band: band, Prompt: 50, Output: 450, Holds: true})
			if !a.went() {
				a.cancel()
				<-a.done
				return nil
			}
			return a.lease
		}
		for _, l := range []*Lease{ask("platinum"), ask("platinum"), ask("platinum")} {
			l.Release(450) // three at once: so many of them may come again
		}
		for {
			l := ask("bronze")
			if l == nil {
				break
			}
			running = append(running, l)
		}
		if len(running) == 0 {
			t.Fatal("nothing of bronze goes")
		}
		for i := range 3 {
			l := ask("platinum")
			if l == nil {
				t.Fatalf("with %d of bronze the platinum request %d waits", len(running), i)
			}
			defer l.Release(450)
		}
		for _, l := range running {
			l.Release(450)
		}
	})
}

// TestLargeRequestOfAHighBand: small requests of a low band do not take the room
// that it waits for again and again.
func TestLargeRequestOfAHighBand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(1, 0, time.Second)
		s.model.Endpoints[0].Slots = 1000
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			for ctx.Err() == nil {
				s.engines[0].replica.SetStats(&fleet.Stats{At: time.Now(), Waiting: 0, Running: 0, KVUsage: 0, BlockSize: 10, Blocks: 1000})
				time.Sleep(time.Second)
			}
		})
		synctest.Wait()
		for i := range 40 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 50 * time.Millisecond)
				for ctx.Err() == nil {
					lease, err := s.gate.Acquire(ctx, &Request{Model: s.model, Band: "bronze", Prompt: 200, Output: 200, Holds: true})
					if err != nil {
						continue
					}
					time.Sleep(time.Second)
					lease.Release(200)
				}
			})
		}
		time.Sleep(5 * time.Second)
		large, err := s.gate.Acquire(t.Context(), &Request{Model: s.model, Band: "platinum", Prompt: 7000, Output: 0, Holds: true})
		if err != nil {
			t.Fatal(err)
		}
		if d := large.Waited(); d == 0 || d > 4*time.Second {
			t.Errorf("it waited %v, with requests of one second before it", d)
		}
		large.Release(0)
		stop()
		wg.Wait()
	})
}

// tokens makes a site whose replicas can hold 10,000 tokens each, of which so many
// are in use.
func tokens(used ...int) *site {
	s := newSite(len(used), 0, time.Second)
	for i, n := range used {
		s.model.Endpoints[i].Slots = 1000
		s.engines[i].replica.SetStats(&fleet.Stats{
			At: time.Now(), Waiting: 0, Running: 1, KVUsage: schedule.Gauge(n) / 10_000, BlockSize: 10, Blocks: 1000,
		})
	}
	return s
}

// TestBurstOfLargeRequests: each counts on a replica that has room for it.
func TestBurstOfLargeRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := tokens(100, 100)
		s.model.Endpoints[1].Slots = 1 // it has fewer slots, and as much room
		n := 0
		for range 8 {
			a := s.start(t.Context(), &Request{Model: s.model, Band: "platinum", Prompt: 2500, Output: 2500, Holds: true})
			if a.went() {
				n++
				defer a.lease.Release(1)
			} else {
				a.cancel()
			}
		}
		if n != 2 {
			t.Errorf("%d of 5,000 tokens go to two replicas of 10,000", n)
		}
	})
}

// TestWithoutCache: what holds no cache waits for none.
func TestWithoutCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := tokens(8900)
		a := s.start(t.Context(), &Request{Model: s.model, Band: "platinum", Prompt: 100_000})
		if !a.went() {
			t.Fatal("it waits")
		}
		a.lease.Release(1)
	})
}

// TestRoomOfReplicasThatAreAway: what fits one that takes no work now may wait.
func TestRoomOfReplicasThatAreAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := tokens(0, 0)
		s.engines[1].replica.SetStats(&fleet.Stats{At: time.Now(), Waiting: 0, Running: 0, KVUsage: 0, BlockSize: 10, Blocks: 5000})
		s.engines[1].replica.SetDraining(true)
		r := &Request{Model: s.model, Band: "platinum", Prompt: 20_000, Holds: true, Least: 20_000}
		if a := s.start(t.Context(), r); a.refused() != "" {
			t.Errorf("it is refused for good: %v", a.err)
		} else {
			a.cancel()
		}
		r.Least = 60_000
		if a := s.start(t.Context(), r); a.refused() != ReasonTooLarge {
			t.Errorf("nothing can hold it: %v", a.err)
		}
	})
}

// TestSmallRequestsPassALargeOne: while that waits for room in one cache, others of lower
// bands take the slots, where all together have enough left.
func TestSmallRequestsPassALargeOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := strict(t, 2, 4)
		for _, e := range s.engines {
			e.replica.SetStats(&fleet.Stats{At: time.Now(), Waiting: 0, Running: 0, KVUsage: 0, BlockSize: 10, Blocks: 1000})
		}
		ask := func(band string, prompt int64) *asked {
			a := s.start(t.Context(), &Request{Model: s.model, Band: band, Prompt: prompt, Holds: true})
			a.went()
			return a
		}
		var running []*asked
		for i := range 8 {
			running = append(running, ask("silver", []int64{7000, 10}[min(1, i/2)]))
		}
		large, small := ask("gold", 2000), ask("silver", 100)
		if large.went() || small.went() {
			t.Fatal("all slots are taken")
		}
		running[7].lease.Release(0)
		running[6].lease.Release(0)
		if large.went() || !small.went() {
			t.Errorf("with two slots free: large %v, small %v", large.went(), small.went())
		}
		running[0].lease.Release(0)
		if !large.went() {
			t.Error("the large one waits still")
		}
		for _, a := range append(running[1:6], large, small) {
			a.lease.Release(0)
		}
		s.atRest(t)
	})
}
