// Package llmgw is the Caddy app of the gateway: it turns config into the
// catalog and the routing profiles, holds the state that outlives configs, and
// is where the HTTP modules meet.
package llmgw

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/llmgw/llmgw/modules/internal/admit"
	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/internal/exchange"
)

func init() {
	caddy.RegisterModule(new(App))
}

// App holds the models, the replicas that serve them, and how requests are
// routed between these. In a Caddyfile it is the global option `llmgw`.
type App struct {
	// How often each replica's metrics page is read. Default: 1s
	ScrapeInterval caddy.Duration `json:"scrape_interval,omitempty"`

	// The routing profile of models and keys that name none. Default: chat
	DefaultProfile string `json:"default_profile,omitempty"`

	// Routing profiles, by name. A shipped one (chat, batch, long-context,
	// debug) is changed by what is given here, any other name adds one.
	Routing map[string]*Routing `json:"routing,omitempty"`

	// How requests of one conversation find the replica that served it before.
	// Models may override it.
	Prefix *Prefix `json:"prefix,omitempty"`

	// What happens when a replica fails.
	Reliability *Reliability `json:"reliability,omitempty"`

	// The priority classes, by name. A shipped one (platinum, gold, silver,
	// bronze) is changed by what is given here, any other name adds one.
	Bands map[string]*Band `json:"bands,omitempty"`

	// When requests wait in the gateway. Models may override it.
	Admission *Admission `json:"admission,omitempty"`

	// The models that are served.
	Models []*Model `json:"models,omitempty"`

	// Replicas whose models are read from their /v1/models, now and whenever
	// they come back.
	Endpoints []*Endpoint `json:"endpoints,omitempty"`

	ctx     caddy.Context
	shared  *shared
	log     *zap.Logger
	runtime *exchange.Runtime
	detach  func()
	start   sync.Once
	// holds counts this config itself and its open exchanges. Exchanges run on
	// after the config is replaced, and need the shared state until they end. At
	// 0 all is given back, once.
	holds     atomic.Int64
	cleaned   sync.Once
	release   []func()
	targets   targets
	transport transports
	defaults  catalog.Model
	bands     []admit.Band
	statics   statics
	graceless atomic.Bool // Caddy would wait for streams for ever when it stops
	servers   sync.Map    // *http.Server that are told to end -> nil
}

// CaddyModule returns the Caddy module information.
func (*App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "llmgw",
		New: func() caddy.Module { return new(App) },
	}
}

// Provision takes a hold on the shared state and builds what the config says.
// It starts nothing.
func (a *App) Provision(ctx caddy.Context) error {
	a.ctx, a.log = ctx, ctx.Logger()
	a.holds.Store(1)
	s, err := holdShared()
	if err != nil {
		return err
	}
	a.shared = s
	a.release = append(a.release, sync.OnceFunc(releaseShared))
	if err := s.metrics.register(ctx.GetMetricsRegistry()); err != nil {
		return fmt.Errorf("registering metrics: %w", err)
	}
	return a.build(ctx)
}

// Start makes this config the current one. Replicas are asked how they are
// from now on.
func (a *App) Start() error {
	running.add(a)
	a.Runtime()
	v, err := a.ctx.AppIfConfigured("http")
	server, ok := v.(*caddyhttp.App)
	a.graceless.Store(err == nil && ok && server.GracePeriod == 0)
	return nil
}

// Stop ends what Start began, unless a newer config has taken over already.
// Requests that still run are not touched.
func (a *App) Stop() error {
	running.remove(a)
	a.end()
	return nil
}

// end stops the shared work that this config started. A request that comes
// later must not start it again.
func (a *App) end() {
	a.start.Do(func() {})
	if a.detach != nil {
		a.detach()
	}
	a.statics.end()
}

// Cleanup gives back this config's hold on the shared state.
func (a *App) Cleanup() error {
	a.cleaned.Do(func() {
		// HTTP may have served, and so started the work, before another app
		// failed: then nobody calls Stop.
		a.end()
		a.letGo()
	})
	return nil
}

// hold keeps what exchanges need. It returns false if that is given back
// already: a request may reach a handler of a config that is gone.
func (a *App) hold() bool {
	for {
		n := a.holds.Load()
		if n == 0 {
			return false
		}
		if a.holds.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// letGo gives one hold back, and with the last one everything.
func (a *App) letGo() {
	if a.holds.Add(-1) > 0 {
		return
	}
	for i := len(a.release) - 1; i >= 0; i-- {
		a.release[i]()
	}
	a.transport.close()
}

// Runtime returns what this config's exchanges share. The first call starts
// the shared work: apps start in no set order, and HTTP may serve before this
// one does.
func (a *App) Runtime() *exchange.Runtime {
	a.start.Do(func() {
		scraped, followed := a.shared.scraper.Attach(a.targets.list, a.relearn), a.shared.kv.Attach(a.follows())
		a.detach = func() { scraped(); followed() }
		if len(a.runtime.Catalog.Learning()) > 0 {
			a.runtime.Catalog.Relearn()
		}
	})
	return a.runtime
}

// relearn brings the catalog up to date with what replicas list, and what waits
// with the catalog.
func (a *App) relearn() {
	a.runtime.Catalog.Relearn()
	running.mu.Lock() // else another may take its place in between
	defer running.mu.Unlock()
	if Current() == a {
		a.admits()
	}
}

// stack holds the apps that have started and not stopped. A new config starts
// before the old one stops, and stops again if another of its apps cannot
// start: then the old one is current as before.
type stack struct {
	mu   sync.Mutex
	apps []*App
	top  atomic.Pointer[App]
}

var running stack

func (s *stack) add(a *App) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.apps = append(s.apps, a)
	s.top.Store(a)
	a.admits()
}

func (s *stack) remove(a *App) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.apps = slices.DeleteFunc(s.apps, func(b *App) bool { return a == b })
	s.top.Store(nil)
	if n := len(s.apps); n > 0 {
		s.top.Store(s.apps[n-1])
		s.apps[n-1].admits()
	}
}

// Current returns the app of the config that serves now, or nil.
func Current() *App { return running.top.Load() }

// now is the gateway's clock.
func now() time.Time { return time.Now() }

// Interface guards.
var (
	_ caddy.App          = (*App)(nil)
	_ caddy.Provisioner  = (*App)(nil)
	_ caddy.CleanerUpper = (*App)(nil)
)
