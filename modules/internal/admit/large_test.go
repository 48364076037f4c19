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

// TestBurstOfLargeOnes: one request of another tenant does not wait for a burst, of whatever
// number of sequences its requests are.
func TestBurstOfLargeOnes(t *testing.T) {
	for _, n := range []int64{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			s := strict(t, 1, 8)
			ctx, stop := context.WithCancel(t.Context())
			go s.memory(ctx, 1_000_000)
			for range 8 {
				s.stream(ctx, *s.request("silver", "x"), time.Second, time.Second)
				time.Sleep(time.Second / 8)
			}
			time.Sleep(10 * time.Second)
			for range 300 / n {
				r := *s.request("silver", "g")
				r.Sequences, r.Output = n, 50*n
				s.stream(ctx, r, time.Hour, time.Second)
			}
			time.Sleep(time.Second)
			went, refused := s.stream(ctx, *s.request("silver", "f"), time.Second, time.Second)
			time.Sleep(24 * time.Second)
			if went.Load() < 22 || refused.Load() > 0 {
				t.Errorf("beside a burst with n %d: of 24 %d went, %d refused", n, went.Load(), refused.Load())
			}
			stop()
			time.Sleep(time.Hour)
			s.atRest(t)
		})
	}
}

// TestLargeOnesBesideOnesThatNeverFit: those of another tenant of the band go all the same.
func TestLargeOnesBesideOnesThatNeverFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		s := strict(t, 1, 8)
		go s.memory(ctx, 10_000)
		time.Sleep(time.Millisecond)
		s.steady(ctx, 5, 1000)
		time.Sleep(5 * time.Second)
		for _, tenant := range []string{"evil", "worse"} {
			never := *s.request("silver", tenant)
			never.Prompt = 6000
			s.stream(ctx, never, 5*time.Second, time.Second)
		}
		time.Sleep(10 * time.Second)
		for range 2 {
			s.stream(ctx, *s.request("silver", "s"), 600*time.Millisecond, time.Second)
		}
		r := *s.request("silver", "good")
		r.Sequences = 2
		went, refused := s.stream(ctx, r, 5*time.Second, time.Second)
		time.Sleep(3 * time.Minute)
		if went.Load() < 33 || refused.Load() > 0 {
			t.Errorf("of 36 %d went, %d refused", went.Load(), refused.Load())
		}
		stop()
		time.Sleep(time.Minute)
		s.atRest(t)
	})
}

// TestWhatFitsOfThoseSetAside: one of those that are set aside goes when there is room for it,
// before another whose turn it is and that needs more.
func TestWhatFitsOfThoseSetAside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := strict(t, 1, 8)
		ctx, stop := context.WithCancel(t.Context())
		go s.memory(ctx, 10_000)
		time.Sleep(time.Millisecond)
		start := func(tenant string, sequences, prompt int64) *asked {
			r := s.request("silver", tenant)
			r.Sequences, r.Prompt = sequences, prompt
			a := s.start(ctx, r)
			synctest.Wait()
			return a
		}
		var all []*asked
		for range 7 {
			all = append(all, start("x", 1, 1000))
		}
		large, wide := start("l", 2, 6000), start("w", 2, 100)
		if !all[6].went() || large.went() || wide.went() {
			t.Fatal("one goes for which there is no room")
		}
		all[6].lease.Release(-1)
		if !wide.went() || large.went() {
			t.Errorf("with two slots free: wide %v, large %v", wide.went(), large.went())
		}
		for _, a := range append(all[:6], wide, large) {
			if !a.went() {
				t.Fatal("one waits on an idle replica")
			}
			a.lease.Release(-1)
		}
		stop()
		time.Sleep(time.Minute)
		s.atRest(t)
	})
}

// TestStreamOfUsualSize: requests that are no larger than usual ones, and hardly ever fit, stop
// neither their band nor lower ones.
func TestStreamOfUsualSize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		s := strict(t, 1, 8)
		go s.memory(ctx, 10_000)
		time.Sleep(time.Millisecond)
		s.steady(ctx, 3, 2500)
		time.Sleep(30 * time.Second)
		silver, _ := s.stream(ctx, *s.request("silver", "s"), time.Second, time.Second/2)
		bronze, _ := s.stream(ctx, *s.request("bronze", "b"), time.Second, time.Second/2)
		r := *s.request("silver", "evil")
		r.Prompt = 3000
		never, _ := s.stream(ctx, r, 5*time.Second, time.Second)
		time.Sleep(3 * time.Minute)
		// In the moment between two of platinum there is room for one.
		if never.Load() > 3 || silver.Load() < 165 || bronze.Load() < 150 {
			t.Errorf("of 180: silver %d, bronze %d; %d of 36 went that hardly fit", silver.Load(), bronze.Load(), never.Load())
		}
		stop()
		time.Sleep(time.Minute)
		s.atRest(t)
	})
}

// TestWhatIsToBeHadAgain: once one goes for which there was no room for long, others of its
// size wait for their turn as before.
func TestWhatIsToBeHadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		s := strict(t, 1, 8)
		go s.memory(ctx, 10_000)
		time.Sleep(time.Millisecond)
		full, quiet := context.WithCancel(ctx)
		s.steady(full, 3, 2500)
		time.Sleep(30 * time.Second)
		r := s.request("silver", "a")
		r.Prompt = 3000
		large := func() bool {
			s.gate.lock()
			defer s.gate.unlock()
			return s.gate.newWaiter(r, time.Now()).large(WaitTokens)
		}
		went, _ := s.stream(ctx, *r, time.Minute, time.Second)
		time.Sleep(20 * time.Second)
		if went.Load() > 0 || !large() {
			t.Fatalf("%d went; large: %v", went.Load(), large())
		}
		quiet()
		time.Sleep(10 * time.Second)
		if went.Load() == 0 || large() {
			t.Errorf("%d went; large: %v", went.Load(), large())
		}
		stop()
		time.Sleep(time.Minute)
		s.atRest(t)
	})
}

// TestManyModelsThatCannotGo hold up another one on the same replica for no longer than one
// does.
func TestManyModelsThatCannotGo(t *testing.T) {
	for _, models := range []int{1, 12} {
		synctest.Test(t, func(t *testing.T) {
			s := newSite(1, 8, time.Second)
			s.model.Endpoints[0].Slots, s.model.TargetWaiting = 8, 20
			ctx, stop := context.WithCancel(t.Context())
			go func() { // another gateway keeps it so
				for ; ctx.Err() == nil; time.Sleep(time.Second / 2) {
					s.engines[0].replica.SetStats(&fleet.Stats{At: time.Now(), Waiting: 3, Running: 8, KVUsage: 0})
				}
			}()
			time.Sleep(time.Second)
			s.stream(ctx, *s.request("silver", "b"), time.Second, 100*time.Millisecond)
			time.Sleep(3 * time.Second)
			for i := range models {
				m := s.other(0, 1)
				m.Name, m.TargetWaiting = fmt.Sprint("n", i), 2+float64(i)/100
				r := *s.request("silver", "a")
				r.Model = m
				s.stream(ctx, r, time.Second, time.Second)
			}
			time.Sleep(45 * time.Second)
			held := 0
			for range 1200 {
				time.Sleep(100 * time.Millisecond)
				if s.gate.Explain(s.request("silver", "z")).Waits != "" {
					held++
				}
			}
			if held > 150 {
				t.Errorf("beside %d models: it is held up %d times of 1200", models, held)
			}
			stop()
			time.Sleep(time.Minute)
			s.atRest(t)
		})
	}
}

// TestWideOfLongRequests: what takes longer than requests may wait is waited for as well.
func TestWideOfLongRequests(t *testing.T) {
	for _, takes := range []time.Duration{time.Second, 40 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			s := strict(t, 1, 8)
			go s.memory(ctx, 1_000_000)
			time.Sleep(time.Millisecond)
			s.stream(ctx, *s.request("silver", "s"), takes/9, takes)
			time.Sleep(5 * takes)
			r := *s.request("silver", "w")
			r.Sequences = 2
			went, _ := s.stream(ctx, r, takes, takes)
			time.Sleep(40 * takes)
			if went.Load() < 35 {
				t.Errorf("requests take %v: of 40 with two sequences %d went", takes, went.Load())
			}
			stop()
			time.Sleep(2 * time.Minute)
			s.atRest(t)
		})
	}
}

// TestLowerBandsDoNotQueueBeforeHigherOnes: the slot that a client of a higher band frees is
// there for its next request, not for one of a lower band that waits in the engine.
func TestLowerBandsDoNotQueueBeforeHigherOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(2, 4, time.Second)
		for _, e := range s.model.Endpoints {
			e.Slots = 4
		}
		ctx, stop := context.WithCancel(t.Context())
		go s.scrapes(ctx)
		for range 30 {
			go func() {
				for ctx.Err() == nil {
					_, _ = s.ask(ctx, "bronze", "b", false)
				}
			}()
		}
		time.Sleep(10 * time.Second)
		var all, late atomic.Int64
		for range 2 {
			go func() {
				for ctx.Err() == nil {
					d, err := s.ask(ctx, "platinum", "p", false)
					if all.Add(1); err != nil || d > 100*time.Millisecond {
						late.Add(1)
					}
					time.Sleep(time.Millisecond)
				}
			}()
		}
		time.Sleep(2 * time.Minute)
		if late.Load() > all.Load()/20 {
			t.Errorf("%d of %d of platinum wait", late.Load(), all.Load())
		}
		stop()
		time.Sleep(time.Minute)
		s.atRest(t)
	})
}

// TestExplainKeepsNothing: to say what would become of a request keeps no replica for one.
func TestExplainKeepsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, lease := patient(t, func(*Band) {})
		other := s.other(0, 1)
		other.TargetWaiting = 2
		r := s.request("silver", "a")
		r.Model = other
		for range 3 {
			s.gate.Explain(r)
		}
		if len(s.gate.holds) > 0 {
			t.Error("it keeps one")
		}
		lease.Release(1)
		s.atRest(t)
	})
}
