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

// TestHeadroomWhereItIsOfUse: what a model needs in a higher band on one of the replicas is
// left free there, and not somewhere.
func TestHeadroomWhereItIsOfUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := strict(t, 3, 8)
		one := s.other(0, 1)
		platinum := func() []*Lease { return s.burst(t, one, "platinum", 3) }
		for _, l := range platinum() {
			l.Release(1)
		}
		var low []*asked
		for range 24 {
			low = append(low, s.start(t.Context(), s.request("bronze", "b")))
		}
		time.Sleep(10 * time.Second)
		n := 0
		for _, a := range low {
			if a.went() {
				n++
			}
		}
		if free := s.engines[0].replica.Load(time.Now(), 8).Free; n != 21 || free != 3 {
			t.Errorf("%d of bronze run, %v slots are free where platinum can go", n, free)
		}
		for _, l := range platinum() {
			l.Release(1)
		}
		for _, a := range low {
			if !a.went() {
				a.cancel()
				synctest.Wait()
			}
			a.lease.Release(1)
		}
		s.atRest(t)
	})
}

// TestLargeBesideSmallOfAnotherModel: a model with large requests on one of the replicas
// gets them through, beside small ones of a model that has all, of its band or of a lower
// one.
func TestLargeBesideSmallOfAnotherModel(t *testing.T) {
	for _, band := range []string{"silver", "gold"} {
		t.Run(band, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := tokens(0, 0)
				for _, e := range s.model.Endpoints {
					e.Slots = 16
				}
				one := s.other(0, 1)
				ctx, stop := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				wg.Go(func() {
					for ctx.Err() == nil {
						for _, e := range s.engines {
							e.replica.SetStats(&fleet.Stats{At: time.Now(), Waiting: 0, Running: 0, KVUsage: 0, BlockSize: 10, Blocks: 1000})
						}
						time.Sleep(time.Second)
					}
				})
				synctest.Wait()
				flood := func(m *catalog.Model, band string, clients int, prompt int64) (done *int) {
					done = new(int)
					var mu sync.Mutex
					for i := range clients {
						wg.Go(func() {
							time.Sleep(time.Duration(i) * time.Second / time.Duration(clients))
							for ctx.Err() == nil {
								lease, err := s.gate.Acquire(ctx, &Request{Model: m, Band: band, Prompt: prompt, Holds: true})
								if err != nil {
									time.Sleep(time.Second)
									continue
								}
								time.Sleep(time.Second)
								lease.Release(1)
								mu.Lock()
								*done++
								mu.Unlock()
							}
						})
					}
					return done
				}
				small := flood(s.model, "silver", 60, 900)
				time.Sleep(5 * time.Second)
				large := flood(one, band, 3, 6000)
				time.Sleep(2 * time.Minute)
				stop()
				wg.Wait()
				// In turns by tokens it would be one of 6,000 in three seconds or so.
				if *large < 20 || *small < 500 {
					t.Errorf("%d large ones and %d small ones in two minutes", *large, *small)
				}
				s.atRest(t)
			})
		})
	}
}

// TestModelsWithOtherThresholdsTakeTurns: the one that fills engines less does not starve.
func TestModelsWithOtherThresholdsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(1, 8, time.Second)
		s.model.Endpoints[0].Slots = 8
		careful := s.other(0, 1)
		careful.TargetWaiting = 1
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { s.scrapes(ctx) })
		done := make(map[string]int)
		var mu sync.Mutex
		for i := range 40 {
			m := []*catalog.Model{s.model, careful}[i%2]
			wg.Go(func() {
				for ctx.Err() == nil {
					r := s.request("silver", "a")
					r.Model = m
					lease, err := s.gate.Acquire(ctx, r)
					if err != nil {
						time.Sleep(time.Second)
						continue
					}
					_, slot := s.pick()
					lease.Placed()
					s.engines[0].serve()
					slot.Release()
					lease.Release(50)
					mu.Lock()
					done[m.Name]++
					mu.Unlock()
				}
			})
		}
		time.Sleep(2 * time.Minute)
		stop()
		wg.Wait()
		if share := float64(done["n"]) / float64(done["m"]+done["n"]); share < 0.35 || share > 0.65 {
			t.Errorf("the careful one got %.2f: %v", share, done)
		}
		s.atRest(t)
	})
}

// TestOneAfterTheOther: of those that cannot go, none holds up others when the one before
// it has done so for long, until these have had nine times as long.
func TestOneAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := tokens(0, 0)
		for _, e := range s.model.Endpoints {
			e.Slots = 16
		}
		s.model.Admission.QueueTTL = time.Hour
		scrape := func(used float64) {
			for _, e := range s.engines {
				e.replica.SetStats(&fleet.Stats{At: time.Now(), Waiting: 0, Running: 1, KVUsage: schedule.Gauge(used), BlockSize: 10, Blocks: 1000})
			}
		}
		scrape(0.5)
		one := s.other(0, 1)
		ask := func(m *catalog.Model, prompt int64) *asked {
			a := s.start(t.Context(), &Request{Model: m, Band: "silver", Prompt: prompt, Holds: true})
			a.went()
			return a
		}
		// anywhere reports whether small ones go to the replica that the large one waits for.
		anywhere := func() (is bool) {
			var all []*asked
			for range 4 {
				all = append(all, ask(s.model, 10))
			}
			for _, a := range all {
				if !a.went() {
					t.Fatalf("a small one waits: %v", a.err)
				}
				e, _ := a.lease.Reserved()
				is = is || e == s.engines[0].replica
				a.lease.Release(1)
			}
			return is
		}
		pass := func(d time.Duration) {
			for range d / time.Second {
				time.Sleep(time.Second)
				scrape(0.5)
			}
		}
		ask(s.model, 10).lease.Release(1) // it has had its turn
		for round := range 2 {
			large := ask(one, 6000)
			pass(2 * time.Second)
			if anywhere() {
				t.Errorf("round %d: a small one takes what the large one waits for", round)
			}
			pass(10 * time.Second)
			if !anywhere() {
				t.Errorf("round %d: it holds up others for ever", round)
			}
			large.cancel()
			large = ask(one, 6000)
			pass(2 * time.Second)
			if !anywhere() {
				t.Errorf("round %d: the next one begins anew", round)
			}
			large.cancel()
			pass(time.Minute)
		}
	})
}

// TestWhatANeighbourWaitsFor: one whose room is another's to take does not get it since a
// third asks.
func TestWhatANeighbourWaitsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := tokens(0, 0)
		s.model.Endpoints[0].Slots, s.model.Endpoints[1].Slots = 1, 4
		s.model.Admission.QueueTTL = time.Hour
		strict := Bands()
		for i := range strict {
			strict[i].Ceiling = 0.01
		}
		s.configure(t, strict)
		scrape := func() {
			for i, e := range s.engines {
				e.replica.SetStats(&fleet.Stats{At: time.Now(), Waiting: 0, Running: schedule.Gauge(i), KVUsage: schedule.Gauge(i) * 0.5, BlockSize: 10, Blocks: 1000})
			}
		}
		scrape()
		first, last := s.other(0, 1), s.other(1, 2)
		s.gate.Explain(s.request("bronze", "a")) // its replicas are known
		ask := func(band string, m *catalog.Model, prompt int64) *asked {
			a := s.start(t.Context(), &Request{Model: m, Band: band, Prompt: prompt, Holds: true})
			a.went()
			return a
		}
		runs := ask("silver", first, 10)
		large := ask("platinum", last, 6000) // for room in the second's cache
		time.Sleep(time.Millisecond)
		both := ask("gold", s.model, 10) // for either, of which one is full, and one the large one's
		third := ask("silver", first, 10)
		if !runs.went() || large.went() || both.went() || third.went() {
			t.Fatalf("%v %v %v %v", runs.went(), large.went(), both.went(), third.went())
		}
		runs.lease.Release(1)
		if !both.went() || third.went() {
			t.Errorf("with a slot for it: %v, %v", both.went(), third.went())
		}
		both.lease.Release(1)
		if !third.went() {
			t.Error("nobody else wants it")
		}
		third.lease.Release(1)
		large.cancel()
		synctest.Wait()
	})
}
