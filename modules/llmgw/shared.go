package llmgw

import (
	"log/slog"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap/exp/zapslog"

	"github.com/llmgw/llmgw/modules/internal/admit"
	"github.com/llmgw/llmgw/modules/internal/exchange"
	"github.com/llmgw/llmgw/modules/internal/fleet"
	"github.com/llmgw/llmgw/modules/internal/kvevents"
	"github.com/llmgw/llmgw/modules/internal/prefix"
	"github.com/llmgw/llmgw/modules/internal/scrape"
)

// bodyBudget bounds the bytes of all request bodies in flight in the process.
const bodyBudget = 1 << 30

// shared is the state that outlives configs: facts about the world, and the
// counters that Prometheus expects not to fall.
type shared struct {
	fleet   *fleet.Fleet
	scraper *scrape.Manager
	budget  *exchange.Budget
	retry   *exchange.RetryBudget
	gate    *admit.Gate
	metrics *metrics
	kv      *kvevents.Manager
	tokens  *kvevents.Tokenizer
	// prefix is of the config that started last.
	prefix atomic.Pointer[prefix.Index]
}

// index returns what is remembered of prompts, if that takes so many bytes, or else an empty index
// that does; remember makes it the one that configs after this one go on with.
func (s *shared) index(memory int64) *prefix.Index {
	if x := s.prefix.Load(); x != nil && x.Limit() == memory {
		return x
	}
	return prefix.New(memory)
}

func (s *shared) remember(x *prefix.Index) { s.prefix.Store(x) }

// pool holds the one shared state for as long as a config or an exchange needs
// it.
var pool = caddy.NewUsagePool()

const sharedKey = "llmgw"

// holdShared returns the shared state and holds it until releaseShared is
// called as often.
func holdShared() (*shared, error) {
	v, _, err := pool.LoadOrNew(sharedKey, func() (caddy.Destructor, error) {
		f, b, g := fleet.New(now), exchange.NewBudget(bodyBudget), admit.NewGate(now)
		m := newMetrics(f, b, g)
		g.Refused = m.notAdmitted
		s := &shared{
			fleet: f, budget: b, gate: g, retry: exchange.NewRetryBudget(), scraper: scrape.New(logger, now), metrics: m,
			kv: kvevents.NewManager(eventsMemory, logger), tokens: kvevents.NewTokenizer(tokensMemory),
		}
		m.live.events = s.kv
		m.live.prefix = &s.prefix
		f.Gone = func(r *fleet.Replica) {
			if x := s.prefix.Load(); x != nil {
				x.Forget(r.Serial)
			}
		}
		s.scraper.Scraped = func(r *fleet.Replica, reset bool) {
			if x := s.prefix.Load(); x != nil {
				if reset {
					x.Reset(r.Serial)
				}
				x.Mark(r.Serial)
			}
		}
		return s, nil
	})
	if err != nil {
		return nil, err
	}
	return v.(*shared), nil
}

func releaseShared() { _, _ = pool.Delete(sharedKey) }

// Destruct ends the shared work. The last config has detached by then.
func (s *shared) Destruct() error {
	s.scraper.Wait()
	s.kv.Wait()
	return nil
}

// logger returns the process's logger as it is now: the shared state outlives
// the config whose logger it would otherwise keep.
func logger() *slog.Logger {
	return slog.New(zapslog.NewHandler(caddy.Log().Core(), zapslog.WithName("llmgw.fleet")))
}
