package admit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/llmgw/llmgw/modules/internal/catalog"
)

// An uncontended request: let through at once, and given back.
func BenchmarkAcquireRelease(b *testing.B) {
	for _, engines := range []int{1, 4, 64} {
		b.Run(fmt.Sprint(engines), func(b *testing.B) {
			s := newSite(engines, 8, time.Second)
			for _, e := range s.engines {
				e.scrape()
			}
			r := s.request("silver", "a")
			b.ReportAllocs()
			for b.Loop() {
				lease, err := s.gate.Acquire(b.Context(), r)
				if err != nil {
					b.Fatal(err)
				}
				lease.Placed()
				lease.Release(10)
			}
		})
	}
}

func BenchmarkAcquireReleaseParallel(b *testing.B) {
	s := newSite(4, 8, time.Second)
	r := s.request("platinum", "a")
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			lease, err := s.gate.Acquire(b.Context(), r)
			if err != nil {
				b.Fatal(err)
			}
			lease.Placed()
			lease.Release(10)
		}
	})
}

// One slot that goes from one request to the next, and one that comes, while so many
// others wait, of a hundred tenants, for so many replicas.
func BenchmarkDispatch(b *testing.B) {
	for _, size := range []struct{ waiting, engines int }{{10, 4}, {100, 4}, {1000, 4}, {10_000, 4}, {100, 64}, {100, 500}} {
		waiting := size.waiting
		b.Run(fmt.Sprintf("waiting=%d,replicas=%d", waiting, size.engines), func(b *testing.B) {
			s := strict(b, size.engines, 1)
			s.model.Admission.MaxQueued = 100_000
			s.model.Admission.QueueTTL = time.Hour
			bands := Bands()
			for i := range bands {
				bands[i].Ceiling, bands[i].Queue, bands[i].Aging = 0.01, 100_000, 0
			}
			s.configure(b, bands)
			g, ctx := s.gate, context.Background()
			var leases []*Lease
			for range size.engines {
				lease, err := g.Acquire(ctx, s.request("silver", "a"))
				if err != nil {
					b.Fatal(err)
				}
				leases = append(leases, lease)
			}
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			enter := func(i int) *waiter {
				g.lock()
				defer g.unlock()
				_, w, err := g.enter(s.request("silver", fmt.Sprint("tenant-", i%100)), time.Now())
				if err != nil {
					b.Fatal(err)
				}
				return w
			}
			var all []*waiter
			for i := range waiting {
				all = append(all, enter(i))
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(waiting), "B/waiter")
			i := 0
			for b.Loop() {
				leases[0].Release(0)
				leases = leases[1:]
				for ; all[i].lease == nil; i = (i + 1) % len(all) {
				}
				leases = append(leases, all[i].lease)
				all[i] = enter(i)
				i = (i + 1) % len(all)
			}
		})
	}
}

// One slot that goes from one request to the next, while others wait for so many models
// on replicas of their own, or all on the same eight.
func BenchmarkDispatchModels(b *testing.B) {
	for _, shared := range []bool{false, true} {
		for _, models := range []int{1, 10, 100} {
			b.Run(fmt.Sprintf("%d,shared=%v", models, shared), func(b *testing.B) {
				s := strict(b, max(8, models), 1)
				var running []*Lease
				var waiting []*waiter
				for i := range models {
					m := *s.model
					m.Name, m.Endpoints = fmt.Sprint("m", i), s.model.Endpoints[i:i+1]
					if shared { // each with a threshold of its own, which makes a set of its own
						m.Endpoints, m.KVCeiling = s.model.Endpoints[:8], 0.5+float64(i)/1000
					}
					for {
						lease, w := s.enter(b, &m)
						if w != nil {
							waiting = append(waiting, w)
							break
						}
						running = append(running, lease)
					}
				}
				for b.Loop() {
					running[0].Release(0)
					running = running[1:]
					i := -1
					for i < 0 { // the gate's timer may be about to let it go
						i = slices.IndexFunc(waiting, func(w *waiter) bool { return isClosed(w.ready) })
					}
					running = append(running, waiting[i].lease)
					_, waiting[i] = s.enter(b, waiting[i].model)
				}
			})
		}
	}
}

// The same with models on eight replicas each of 24, no two on the same.
func BenchmarkDispatchOverlap(b *testing.B) {
	for _, models := range []int{2, 10, 40} {
		b.Run(fmt.Sprint(models), func(b *testing.B) {
			s := strict(b, 24, 1)
			random := rand.New(rand.NewPCG(1, 2))
			var all []*catalog.Model
			for i := range models {
				m := *s.model
				m.Name, m.Endpoints = fmt.Sprint("m", i), nil
				for _, e := range random.Perm(24)[:8] {
					m.Endpoints = append(m.Endpoints, s.model.Endpoints[e])
				}
				all = append(all, &m)
			}
			var running []*Lease
			waiting := make(map[*catalog.Model]*waiter)
			for len(waiting) < models {
				for _, m := range all {
					if waiting[m] != nil {
						continue
					}
					lease, w := s.enter(b, m)
					if waiting[m] = w; w == nil {
						running = append(running, lease)
						delete(waiting, m)
					}
				}
			}
			for b.Loop() {
				running[0].Release(50)
				running = running[1:]
				for went, tries := false, 0; !went; tries++ { // the gate's timer may be about to let it go
					if tries == 1_000_000 {
						b.Fatal("nobody goes")
					}
					for m, w := range waiting {
						if !isClosed(w.ready) {
							continue
						}
						went = true
						running = append(running, w.lease)
						lease, again := s.enter(b, m)
						for lease != nil {
							running = append(running, lease)
							lease, again = s.enter(b, m)
						}
						waiting[m] = again
					}
				}
			}
		})
	}
}

// enter asks for a request to a model, and returns its lease, or the request if it waits.
func (s *site) enter(b *testing.B, m *catalog.Model) (*Lease, *waiter) {
	s.gate.lock()
	defer s.gate.unlock()
	r := s.request("silver", "a")
	r.Model = m
	lease, w, err := s.gate.enter(r, time.Now())
	if err != nil {
		b.Fatal(err)
	}
	return lease, w
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
