package llmgw

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/internal/fleet"
	"github.com/llmgw/llmgw/modules/internal/pipeline"
	"github.com/llmgw/llmgw/modules/internal/scrape"
	"github.com/llmgw/llmgw/modules/schedule"
)

// ErrNoProfile says that config names a routing profile that does not exist.
func ErrNoProfile(name string) error { return fmt.Errorf("there is no routing profile %q", name) }

// Static is a static upstream of a plain reverse_proxy.
type Static struct {
	// Address is what Caddy dials.
	Address string
	// Inflight is how many requests Caddy has on it.
	Inflight int
	// Index is the caller's.
	Index int
}

// statics are the static upstreams that selection policies have seen. Caddy
// tells a policy its upstreams with the first request only.
type statics struct {
	seen     sync.Map // address -> *fleet.Replica, nil if it cannot be scraped
	count    atomic.Int64
	mu       sync.Mutex
	detach   []func()
	sequence atomic.Uint64
}

// maxStatics bounds how many are scraped: addresses with placeholders could be
// any number.
const maxStatics = 1024

// SelectStatic returns the Index of the upstream that the profile picks, or -1
// if there is none. profile "" is the default one.
func (a *App) SelectStatic(profile string, h http.Header, upstreams []Static) int {
	rt := a.Runtime()
	if profile == "" {
		profile = a.DefaultProfile
	}
	defaults := a.defaults
	req := schedule.Request{
		SessionLoad: defaults.SessionLoad, TargetWaiting: defaults.TargetWaiting, KVCeiling: defaults.KVCeiling,
		Now: rt.Now(), Random: rand.Uint64(), Sequence: a.statics.sequence.Add(1) - 1,
	}
	if v := h[defaults.SessionHeader]; len(v) > 0 && v[0] != "" && req.SessionLoad > 0 {
		req.Session, req.HasSession = xxhash.Sum64String(v[0]), true
	}
	d := pipeline.NewDecision()
	defer d.Free()
	for _, u := range upstreams {
		c := schedule.Replica{
			ID: u.Address, Hash: xxhash.Sum64String(u.Address),
			Waiting: schedule.Unknown, Running: schedule.Unknown, KVUsage: schedule.Unknown,
			BatchCapacity: schedule.Unknown, DrainRate: schedule.Unknown,
		}
		if r := a.static(u.Address); r != nil {
			r.Fill(&c, req.Now)
		}
		// Caddy counts what it has on an upstream and knows when it is down.
		c.Inflight, c.Weight, c.Pool = u.Inflight, 1, defaultPool
		if c.State != schedule.Draining {
			c.State = schedule.Ready
		}
		d.Candidates = append(d.Candidates, c)
	}
	if !d.Decide(rt.Profiles[profile], &req) {
		return -1
	}
	return upstreams[d.Pick].Index
}

// static returns the replica at an upstream's address, and has it scraped from
// the first time on. It returns nil for what is no host and port.
func (a *App) static(address string) *fleet.Replica {
	if v, ok := a.statics.seen.Load(address); ok {
		r, _ := v.(*fleet.Replica)
		return r
	}
	a.statics.mu.Lock()
	defer a.statics.mu.Unlock()
	if v, ok := a.statics.seen.Load(address); ok {
		r, _ := v.(*fleet.Replica)
		return r
	}
	if a.statics.count.Load() >= maxStatics || a.holds.Load() <= 0 {
		return nil
	}
	a.statics.count.Add(1)
	u, err := fleet.ParseURL(address)
	if err != nil {
		a.statics.seen.Store(address, (*fleet.Replica)(nil))
		return nil
	}
	client, err := a.transport.client(catalog.TLS{})
	if err != nil {
		a.statics.seen.Store(address, (*fleet.Replica)(nil))
		return nil
	}
	r, release := a.shared.fleet.Hold(u)
	detach := a.shared.scraper.Attach([]scrape.Target{{
		Replica: r, Client: client, Interval: time.Duration(a.ScrapeInterval),
	}}, func() {})
	a.statics.detach = append(a.statics.detach, detach, release)
	a.statics.seen.Store(address, r)
	return r
}

// end stops the scraping.
func (s *statics) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.detach {
		f()
	}
	s.detach = nil
}
