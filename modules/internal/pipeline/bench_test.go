package pipeline

import (
	"fmt"
	"sync"
	"testing"

	"github.com/llmgw/llmgw/modules/schedule"
)

// fleet64 is the fleet that the promise is made for: 64 replicas in 3 pools,
// the best of them busy, one replica without a KV metric, one stale.
func fleet64() []schedule.Replica {
	list := make([]schedule.Replica, 64)
	for i := range list {
		list[i] = schedule.Replica{
			ID: fmt.Sprintf("10.0.0.%d:8000", i), Hash: uint64(i) * 0x9e3779b97f4a7c15,
			Pool: fmt.Sprintf("ib-%c/h100-80g", 'a'+i%3), Priority: 100 + i%3, Weight: 1,
			Waiting: schedule.Gauge(i % 4), Running: schedule.Gauge(i % 30), KVUsage: schedule.Gauge(i%10) / 12,
			BatchCapacity: 256, DrainRate: schedule.Gauge(1 + i%5),
			Inflight: i % 32, PendingTokens: int64(i * 1000),
		}
	}
	list[5].KVUsage = schedule.Unknown
	list[8].Stale = true
	return list
}

// BenchmarkDecide64 is one decision of the chat profile on a snapshot that is
// there: the promise for all of it is 10 us and 2 allocations.
func BenchmarkDecide64(b *testing.B) {
	p, candidates := chat(), fleet64()
	req := request()
	req.HasSession = true
	b.ReportAllocs()
	for b.Loop() {
		d := NewDecision()
		d.Candidates = append(d.Candidates, candidates...)
		req.Random += 0x9e3779b97f4a7c15
		req.Session = req.Random
		if !d.Decide(p, req) {
			b.Fatal("nothing was picked")
		}
		d.Free()
	}
}

// BenchmarkDecide64OnePool scores and picks among all 64.
func BenchmarkDecide64OnePool(b *testing.B) {
	p, candidates := chat(), fleet64()
	for i := range candidates {
		candidates[i].Pool = "one"
	}
	req := request()
	req.HasSession = true
	b.ReportAllocs()
	for b.Loop() {
		d := NewDecision()
		d.Candidates = append(d.Candidates, candidates...)
		req.Random += 0x9e3779b97f4a7c15
		req.Session = req.Random
		if !d.Decide(p, req) {
			b.Fatal("nothing was picked")
		}
		d.Free()
	}
}

// A decision that has its scratch space allocates nothing.
func TestDecideDoesNotAllocate(t *testing.T) {
	p, candidates, req := chat(), fleet64(), request()
	d := NewDecision()
	defer d.Free()
	d.Candidates = append(d.Candidates, candidates...)
	d.Decide(p, req)
	if n := testing.AllocsPerRun(100, func() { d.Decide(p, req) }); n != 0 {
		t.Errorf("a decision allocates %v times", n)
	}
}

// Decisions come from a pool: what one goroutine frees must not show up in
// another's.
func TestDecisionsAreIndependent(t *testing.T) {
	p, candidates := chat(), fleet64()
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for i := range 200 {
				n := 1 + (worker*31+i)%64
				d := NewDecision()
				if len(d.Candidates) != 0 {
					t.Errorf("a new decision has %d candidates", len(d.Candidates))
				}
				d.Candidates = append(d.Candidates, candidates[:n]...)
				req := request()
				req.Random = uint64(i)
				if !d.Decide(p, req) || d.Pick >= n || d.Candidates[d.Pick].ID != candidates[d.Pick].ID || len(d.Rejected) != n {
					t.Errorf("pick %d of %d", d.Pick, n)
				}
				d.Free()
			}
		})
	}
	wg.Wait()
}
