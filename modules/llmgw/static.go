package llmgw

import (
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/llmgw/llmgw/modules/internal/exchange"
	"github.com/llmgw/llmgw/modules/internal/fleet"
	"github.com/llmgw/llmgw/modules/internal/scrape"
)

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
	closed   bool
	client   *http.Client
	sequence atomic.Uint64
}

// maxStatics bounds how many are scraped: addresses with placeholders could be
// any number.
const maxStatics = 1024

// SelectStatic returns the Index of the upstream that the profile picks, or -1
// if there is none. profile "" is the default one.
func (a *App) SelectStatic(profile string, h http.Header, upstreams []Static) int {
	rt := a.Runtime()
	candidates := make([]exchange.Static, len(upstreams))
	for i, u := range upstreams {
		candidates[i] = exchange.Static{ID: u.Address, Inflight: u.Inflight, Replica: a.static(u.Address)}
	}
	session := ""
	if v := h[a.defaults.SessionHeader]; len(v) > 0 {
		session = v[0]
	}
	i := rt.PickStatic(&a.defaults, profile, session, a.statics.sequence.Add(1)-1, candidates)
	if i < 0 {
		return -1
	}
	return upstreams[i].Index
}

// static returns the replica at an upstream's address, and has it scraped from
// the first time on. It returns nil for what is not one TCP host and port, and
// beyond [maxStatics].
func (a *App) static(address string) *fleet.Replica {
	if v, ok := a.statics.seen.Load(address); ok {
		r, _ := v.(*fleet.Replica)
		return r
	}
	if a.statics.count.Load() >= maxStatics {
		return nil
	}
	a.statics.mu.Lock()
	defer a.statics.mu.Unlock()
	if v, ok := a.statics.seen.Load(address); ok {
		r, _ := v.(*fleet.Replica)
		return r
	}
	if a.statics.closed {
		return nil
	}
	a.statics.count.Add(1)
	r := a.watchStatic(address)
	a.statics.seen.Store(address, r)
	return r
}

// watchStatic has an upstream scraped. It needs the statics' mu.
func (a *App) watchStatic(address string) *fleet.Replica {
	n, err := caddy.ParseNetworkAddress(address)
	if err != nil || n.Network != "tcp" || n.PortRangeSize() != 1 {
		return nil
	}
	u, err := fleet.ParseURL(n.JoinHostPort(0))
	if err != nil {
		return nil
	}
	r, release := a.shared.fleet.Hold(u)
	detach := a.shared.scraper.Attach([]scrape.Target{{
		Replica: r, Client: a.statics.client, Interval: time.Duration(a.ScrapeInterval),
	}}, func() {})
	a.statics.detach = append(a.statics.detach, detach, release)
	return r
}

// end stops the scraping, for good.
func (s *statics) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, f := range s.detach {
		f()
	}
	s.detach = nil
}
