package admit

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/internal/fleet"
	"github.com/llmgw/llmgw/modules/schedule"
)

// other returns another model on some of the site's replicas, which shares no set with the
// site's own.
func (s *site) other(from, to int) *catalog.Model {
	m := *s.model
	m.Name, m.TargetWaiting, m.Endpoints = "n", 2, s.model.Endpoints[from:to]
	return &m
}

// burst lets so many requests of a band through that come at once.
func (s *site) burst(t *testing.T, m *catalog.Model, band string, n int) (all []*Lease) {
	t.Helper()
	for range n {
		r := s.request(band, "a")
		r.Model = m
		lease, err := s.gate.Acquire(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, lease)
	}
	return all
}

// TestModelsTakeTurns: of two models that have replicas in common and more work than these
// can do, in the same band, none starves the other, whichever was there first.
func TestModelsTakeTurns(t *testing.T) {
	for name, tt := range map[string]struct {
		engines, from, to int
		least, most       float64 // share of the second
	}{
		"one replica":      {1, 0, 1, 0.45, 0.55},
		"all replicas":     {4, 0, 4, 0.45, 0.55},
		"half of them":     {4, 2, 4, 0.30, 0.55},
		"the first's half": {2, 0, 1, 0.30, 0.55},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := strict(t, tt.engines, 8)
				second := s.other(tt.from, tt.to)
				ctx, stop := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				var mu sync.Mutex
				done := make(map[string]int)
				flood := func(m *catalog.Model) {
					for i := range 30 * tt.engines {
						wg.Go(func() {
							for n := i; ctx.Err() == nil; n++ {
								r := s.request("silver", "a")
								r.Model = m
								lease, err := s.gate.Acquire(ctx, r)
								if err != nil {
									time.Sleep(time.Second)
									continue
								}
								time.Sleep(time.Duration(500+n%7*150) * time.Millisecond)
								lease.Release(50)
								mu.Lock()
								done[m.Name]++
								mu.Unlock()
							}
						})
					}
				}
				flood(s.model)
				time.Sleep(10 * time.Second)
				flood(second)
				time.Sleep(2 * time.Minute)
				stop()
				wg.Wait()
				share := float64(done["n"]) / float64(done["m"]+done["n"])
				if share < tt.least || share > tt.most {
					t.Errorf("the second got %.2f: %v", share, done)
				}
				s.atRest(t)
			})
		})
	}
}

// TestTurnsByTokens: a model with long requests gets as many tokens as one with short
// ones, and one that comes back after a pause no more than one turn for it.
func TestTurnsByTokens(t *testing.T) {
	noTick(t)
	synctest.Test(t, func(t *testing.T) {
		s, lease := patient(t, func(*Band) {})
		second := s.other(0, 1)
		ask := func(m *catalog.Model, prompt int64) *asked {
			r := s.request("silver", "a")
			r.Model, r.Prompt, r.Output = m, prompt, 0
			a := s.start(t.Context(), r)
			a.went()
			return a
		}
		next := func(all ...*asked) *asked {
			t.Helper()
			lease.Release(1)
			for _, a := range all {
				if a.went() {
					lease = a.lease
					return a
				}
			}
			t.Fatal("nobody went")
			return nil
		}
		long, short := ask(s.model, 1000), ask(second, 100)
		tokens := make(map[bool]int64)
		for range 110 {
			if a := next(long, short); a == long {
				tokens[true] += 1000
				long = ask(s.model, 1000)
			} else {
				tokens[false] += 100
				short = ask(second, 100)
			}
		}
		if tokens[true] < 9000 || tokens[true] > 11_000 || tokens[false] < 9000 || tokens[false] > 11_000 {
			t.Errorf("tokens of the long ones %d, of the short ones %d", tokens[true], tokens[false])
		}
		short.cancel()
		synctest.Wait()
		for range 20 {
			next(long)
			long = ask(s.model, 1000)
		}
		again := ask(second, 1000)
		got := 0
		for range 10 {
			if next(again, long) == long {
				long = ask(s.model, 1000)
			} else {
				got++
				again = ask(second, 1000)
			}
		}
		if got < 5 || got > 6 {
			t.Errorf("after a pause it gets %d of 10 turns", got)
		}
		order(t, lease, []*asked{again, long})
		s.atRest(t)
	})
}

// TestSlotsByTokens: of slots that come at once, those get more whose requests are shorter.
func TestSlotsByTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := strict(t, 1, 11)
		s.model.Admission.ReplicaWait = time.Minute
		s.model.Endpoints[0].Replica.SetDraining(true)
		var all []*asked
		ask := func(m *catalog.Model, prompt int64) {
			r := s.request("silver", "a")
			r.Model, r.Prompt, r.Output = m, prompt, 0
			a := s.start(t.Context(), r)
			a.went()
			all = append(all, a)
		}
		second := s.other(0, 1)
		for range 11 {
			ask(s.model, 1000)
			ask(second, 100)
		}
		s.model.Endpoints[0].Replica.SetDraining(false)
		time.Sleep(tick)
		long, short := 0, 0
		for i, a := range all {
			switch {
			case !a.went():
				a.cancel()
				synctest.Wait()
			case i%2 == 0:
				long++
			default:
				short++
			}
		}
		if long != 1 || short != 10 {
			t.Errorf("%d long ones go and %d short ones", long, short)
		}
		for _, a := range all {
			a.lease.Release(1)
		}
		s.atRest(t)
	})
}

// TestHeadroomForAnotherModel: what another model on the same replicas needs at once in
// higher bands is left free too, whoever asks first.
func TestHeadroomForAnotherModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := strict(t, 1, 16)
		platinum := func() []*Lease { return s.burst(t, s.other(0, 1), "platinum", 3) }
		for _, l := range platinum() {
			l.Release(1)
		}
		var low []*asked
		for range 16 {
			a := s.start(t.Context(), s.request("bronze", "b"))
			time.Sleep(time.Second)
			if !a.went() {
				a.cancel()
				synctest.Wait()
				continue
			}
			low = append(low, a)
		}
		if len(low) != 13 {
			t.Errorf("%d of bronze run, want 13 of 16", len(low))
		}
		for _, l := range platinum() {
			l.Release(1)
		}
		for _, a := range low {
			a.lease.Release(1)
		}
		s.atRest(t)
	})
}

// TestAgingBesideAnotherModel: the turns of higher bands of another model count.
func TestAgingBesideAnotherModel(t *testing.T) {
	noTick(t)
	synctest.Test(t, func(t *testing.T) {
		s, lease := patient(t, func(*Band) {})
		second := s.other(0, 1)
		low := s.wait(t, "bronze", "a")
		time.Sleep(time.Minute)
		for i := range agingShare {
			r := s.request("gold", "b")
			r.Model = second
			high := s.start(t.Context(), r)
			if high.went() {
				t.Fatal("there is no slot")
			}
			lease.Release(1)
			// The very first, of silver, was before any of bronze waited in this set.
			if last := i == agingShare-1; low.went() != last || high.went() == last {
				t.Fatalf("after %d of gold: bronze goes: %v, the next of gold: %v", i, low.went(), high.went())
			}
			if low.went() {
				order(t, low.lease, []*asked{high})
				break
			}
			lease = high.lease
		}
		s.atRest(t)
	})
}

// TestWhatAnotherModelWaitsFor: a lower band does not go to a replica on which a higher one
// of another model waits for room.
func TestWhatAnotherModelWaitsFor(t *testing.T) {
	for _, all := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s := tokens(0, 0)
			s.model.Admission.QueueTTL = time.Hour
			scrape := func(used float64) {
				for _, e := range s.engines {
					e.replica.SetStats(&fleet.Stats{At: time.Now(), Waiting: 0, Running: 1, KVUsage: schedule.Gauge(used), BlockSize: 10, Blocks: 1000})
				}
			}
			ask := func(band string, m *catalog.Model, prompt int64) *asked {
				a := s.start(t.Context(), &Request{Model: m, Band: band, Prompt: prompt, Holds: true})
				a.went()
				return a
			}
			scrape(0.5)
			ask("bronze", s.model, 10).lease.Release(1) // from now on it takes no lock
			high := s.other(0, 2)
			if !all {
				high = s.other(1, 2)
			}
			large := ask("gold", high, 6000)
			if large.went() {
				t.Fatal("there is no room for it")
			}
			var others []*asked
			for range 4 {
				low := ask("bronze", s.model, 10)
				if e, _ := low.lease.Reserved(); !low.went() || !all && e == s.engines[1].replica {
					t.Errorf("gold has all replicas: %v, bronze goes: %v", all, low.went())
				}
				others = append(others, low)
			}
			on := make(map[*fleet.Replica]bool)
			for _, low := range others {
				e, _ := low.lease.Reserved()
				on[e] = true
				low.lease.Release(1)
			}
			if len(on) != 1 {
				t.Error("bronze goes to the replica that is kept for gold")
			}
			low := ask("bronze", s.model, 10)
			scrape(0)
			time.Sleep(time.Second)
			if !large.went() || !low.went() {
				t.Errorf("with room for both: %v, %v", large.went(), low.went())
			}
			large.lease.Release(1)
			low.lease.Release(1)
		})
	}
}
