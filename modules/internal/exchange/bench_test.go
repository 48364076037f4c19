package exchange

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/internal/fleet"
	"github.com/llmgw/llmgw/modules/schedule"
)

// newWorld64 serves "m" on 64 replicas in 3 pools.
func newWorld64(t testing.TB) *world {
	w := &world{fleet: fleet.New(nil)}
	m := &catalog.Model{Name: "m", SessionHeader: "X-Session-Id", SessionLoad: 1.25, TargetWaiting: 4, KVCeiling: 0.9}
	for i := range 64 {
		e := w.endpoint(t, fmt.Sprintf("10.0.0.%d:8000", i))
		e.Pool, e.Priority = fmt.Sprintf("ib-%c/h100-80g", 'a'+i%3), 100+i%3
		e.Replica.SetStats(&fleet.Stats{
			At: time.Now().Add(time.Hour), Waiting: schedule.Gauge(i % 4), Running: schedule.Gauge(i % 30), KVUsage: schedule.Gauge(i%10) / 12,
		})
		e.Replica.Completed()
		m.Endpoints = append(m.Endpoints, e)
	}
	w.serve(t, nil, m)
	return w
}

// picker returns an exchange that can be picked for again and again.
func picker(t testing.TB, w *world) *Exchange {
	t.Helper()
	r := newRequest(`{"model":"m","user":"a user","messages":[]}`)
	x := Open(w.Runtime, r, FindRoute(chatPath, nil))
	x.Anonymous = true
	if err := x.Read(r); err != nil {
		t.Fatal(err)
	}
	if err := x.Resolve(); err != nil {
		t.Fatal(err)
	}
	return x
}

// again makes the exchange forget its pick, as if it were a new one.
func (x *Exchange) again() {
	x.slot.Release()
	x.endpoint, x.attempts, x.tries, x.tried = nil, 0, 0, x.tried[:0]
}

// BenchmarkDecide64 is a decision with all that belongs to it: snapshot,
// filters, pools, scores, pick, and the counting of the request. The promise is
// 10 us and 2 allocations.
func BenchmarkDecide64(b *testing.B) {
	w := newWorld64(b)
	w.Picked = nil
	x := picker(b, w)
	b.ReportAllocs()
	for b.Loop() {
		if x.Pick() == nil {
			b.Fatal(x.Err())
		}
		x.again()
	}
}

// BenchmarkDecide64Parallel has several requests decide at once.
func BenchmarkDecide64Parallel(b *testing.B) {
	w := newWorld64(b)
	w.Picked = nil
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		x := picker(b, w)
		for pb.Next() {
			if x.Pick() == nil {
				b.Error(x.Err())
			}
			x.again()
		}
	})
}

// BenchmarkExchange is all that the core does for a small request.
func BenchmarkExchange(b *testing.B) {
	w := newWorld64(b)
	w.Hold, w.Release, w.Ended, w.Picked = nil, nil, nil, nil
	route := FindRoute(chatPath, nil)
	b.ReportAllocs()
	for b.Loop() {
		r := newRequest(chatBody)
		r.Header = http.Header{"Content-Type": {"application/json"}}
		x := Open(w.Runtime, r, route)
		x.Anonymous = true
		if x.Read(r) != nil || x.Resolve() != nil || x.Pick() == nil || !x.Direct(r) {
			b.Fatal(x.Err())
		}
		x.Finish(OutcomeOK)
		x.End()
	}
}
