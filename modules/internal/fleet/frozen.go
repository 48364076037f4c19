package fleet

import (
	"sync"
	"time"

	"github.com/llmgw/llmgw/modules/schedule"
)

// page follows whether the values of a metrics page still move. A server may go on to
// answer with what a loop has left that is gone.
type page struct {
	mu                   sync.Mutex
	waiting, running, kv schedule.Gauge
	since                time.Time // when these values were first seen
	low, high            int64     // how many sequences the gateway had there since
}

// frozen reports whether a page claims requests that the gateway has not sent, and has not
// moved for as long as values count, while the gateway's own requests came or went. With
// none of its own on the move nobody can tell it from others' that go on and on.
func (p *page) frozen(s *Stats) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.since.IsZero() || !same(p.waiting, s.Waiting) || !same(p.running, s.Running) || !same(p.kv, s.KVUsage) {
		p.waiting, p.running, p.kv = s.Waiting, s.Running, s.KVUsage
		p.since, p.low, p.high = s.At, s.own, s.own
		return false
	}
	moved := p.high > p.low // by the scrape before: what came since may not be on this page yet
	p.low, p.high = min(p.low, s.own), max(p.high, s.own)
	return s.At.Sub(p.since) >= StatsMaxAge && moved && s.Waiting.Or(0)+s.Running.Or(0) > float64(s.own)
}

func (p *page) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.since = time.Time{}
}

// same compares two values, of which Unknown is one.
func same(a, b schedule.Gauge) bool { return a == b || !a.Known() && !b.Known() }
