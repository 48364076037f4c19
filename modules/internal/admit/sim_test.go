package admit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/internal/fleet"
	"github.com/llmgw/llmgw/modules/schedule"
)

// engine is an engine with a queue of its own, first in, first out, and few slots.
// It is for bubbles in which time is faked.
type engine struct {
	replica *fleet.Replica
	slots   int
	took    time.Duration

	mu      sync.Mutex
	queue   []chan struct{} // who waits, each with what tells it to run
	running int
}

// serve runs a request and returns when it began to run.
func (e *engine) serve() time.Time {
	e.mu.Lock()
	if e.running < e.slots {
		e.running++
		e.mu.Unlock()
	} else {
		next := make(chan struct{})
		e.queue = append(e.queue, next)
		e.mu.Unlock()
		<-next
	}
	began := time.Now()
	time.Sleep(e.took)
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.queue) > 0 {
		close(e.queue[0])
		e.queue = e.queue[1:]
	} else {
		e.running--
	}
	return began
}

// scrape tells the replica how the engine is.
func (e *engine) scrape() {
	e.mu.Lock()
	waiting, running := len(e.queue), e.running
	e.mu.Unlock()
	e.replica.SetStats(&fleet.Stats{
		At: time.Now(), Waiting: schedule.Gauge(waiting), Running: schedule.Gauge(running), KVUsage: 0,
	})
}

// site is a model on some engines behind a gate.
type site struct {
	gate    *Gate
	model   *catalog.Model
	engines []*engine
}

func newSite(engines, slots int, took time.Duration) *site {
	s := &site{gate: NewGate(nil), model: testModel()}
	f := fleet.New(nil)
	for i := range engines {
		r, _ := f.Hold(&url.URL{Scheme: "http", Host: fmt.Sprintf("gpu%d:8000", i)})
		s.engines = append(s.engines, &engine{replica: r, slots: slots, took: took})
		s.model.Endpoints = append(s.model.Endpoints, &catalog.Endpoint{Replica: r, Weight: 1})
	}
	return s
}

func testModel() *catalog.Model {
	return &catalog.Model{
		Name: "m", TargetWaiting: 4, KVCeiling: 0.9, Admission: catalog.Admission{
			KVReserve: 0.15, QueueTTL: 30 * time.Second, MaxQueued: 4000, MaxQueuedBytes: 1 << 30,
		},
	}
}

// scrapes keeps the replicas' statistics as fresh as the gateway does.
func (s *site) scrapes(ctx context.Context) {
	for ctx.Err() == nil {
		for _, e := range s.engines {
			e.scrape()
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// pick sends a request to the engine with the fewest of the gateway's own, as the
// scheduler would.
func (s *site) pick() (*engine, fleet.Slot) {
	best := slices.MinFunc(s.engines, func(a, b *engine) int { return a.replica.Inflight() - b.replica.Inflight() })
	slot, _ := best.replica.Take(-1, 100)
	return best, slot
}

// ask sends a request, through the gate or past it, and returns how long it took
// until it began to run.
func (s *site) ask(ctx context.Context, band, tenant string, past bool) (time.Duration, error) {
	start := time.Now()
	var lease *Lease
	if !past {
		var err error
		if lease, err = s.gate.Acquire(ctx, &Request{Model: s.model, Band: band, Tenant: tenant, Prompt: 50, Output: 50, Holds: true}); err != nil {
			if refused, ok := errors.AsType[*RejectedError](err); ok {
				time.Sleep(refused.RetryAfter) // as clients do
			}
			return 0, err
		}
		defer func() { lease.Release(50) }()
	}
	e, slot := s.pick()
	defer slot.Release()
	if lease != nil {
		lease.Placed()
	}
	return e.serve().Sub(start), nil
}

// load is what an isolation run measures.
type load struct {
	p99  time.Duration // of the high band's time to the first token
	done int           // requests of both bands that ended
}

// isolation runs eight requests a second of platinum for a minute, alone or beside
// 500 clients of bronze at a time. A first token takes as long as a request.
func isolation(t *testing.T, bronze int, past bool) (l load) {
	t.Helper()
	const warm, length = 20 * time.Second, time.Minute
	s := newSite(4, 8, 500*time.Millisecond)
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var mu sync.Mutex
	var waits []time.Duration
	begin := time.Now()
	counts := func() bool { d := time.Since(begin); return d > warm && d <= warm+length }
	wg.Go(func() { s.scrapes(ctx) })
	for range bronze {
		wg.Go(func() {
			for ctx.Err() == nil {
				if _, err := s.ask(ctx, "bronze", "b", past); err == nil && counts() {
					mu.Lock()
					l.done++
					mu.Unlock()
				}
			}
		})
	}
	random := rand.New(rand.NewPCG(1, 2))
	for time.Since(begin) < warm+length {
		time.Sleep(time.Duration(random.ExpFloat64() * float64(time.Second/8)))
		measured := time.Since(begin) > warm
		wg.Go(func() {
			d, err := s.ask(context.Background(), "platinum", "p", past)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if measured {
				waits = append(waits, d+500*time.Millisecond)
			}
			if counts() {
				l.done++
			}
		})
	}
	stop()
	wg.Wait()
	slices.Sort(waits)
	l.p99 = waits[len(waits)*99/100]
	return l
}
