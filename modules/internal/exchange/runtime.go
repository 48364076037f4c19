package exchange

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/llmgw/llmgw/modules/internal/admit"
	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/internal/kvevents"
	"github.com/llmgw/llmgw/modules/internal/pipeline"
	"github.com/llmgw/llmgw/modules/internal/prefix"
)

// Runtime is what all exchanges of one config share. Immutable, but for the
// counters behind its pointers, which outlive the config.
type Runtime struct {
	// Catalog resolves models.
	Catalog *catalog.Catalog
	// Profiles are the routing profiles by name; DefaultProfile is the one of
	// models and keys that name none.
	Profiles       map[string]*pipeline.Profile
	DefaultProfile string
	// Retry keeps retries from multiplying an outage.
	Retry *RetryBudget
	// Budget bounds the bytes of all request bodies in flight.
	Budget *Budget
	// Gate decides when requests go; nil lets all go at once.
	Gate *admit.Gate
	// Prefix knows which prompts went where; nil if nobody keeps count.
	Prefix *prefix.Index
	// KV knows by their events what replicas hold, of prompts whose tokens Tokens knows; both nil if
	// nobody follows any. Client asks an endpoint.
	KV     *kvevents.Manager
	Tokens *kvevents.Tokenizer
	Client func(*catalog.Endpoint) *http.Client
	// LoadAdapter has an endpoint's engine load the adapter that the model is, and returns nil if
	// the engine lists it then.
	LoadAdapter func(ctx context.Context, m *catalog.Model, e *catalog.Endpoint) error
	// NoTokens, unless nil, is called for a request whose tokens were not to be had.
	NoTokens func(*Exchange, error)
	// Hold, unless nil, keeps alive what exchanges need, until Release; it
	// returns false, and needs no Release, if that is gone already.
	Hold    func() bool
	Release func()
	// Ended, unless nil, is called once per exchange, at its end. Picked is called after each decision,
	// with "" or the class of its failure.
	Ended  func(*Exchange)
	Picked func(x *Exchange, failure string)
	// Now is the clock.
	Now func() time.Time
}

// profile returns the profile of the given name, or the default one.
func (rt *Runtime) profile(name string) *pipeline.Profile {
	if p := rt.Profiles[name]; p != nil {
		return p
	}
	return rt.Profiles[rt.DefaultProfile]
}

// Budget counts bytes that are held against a limit. Safe for concurrent use.
type Budget struct {
	limit int64
	used  atomic.Int64
}

// NewBudget returns a budget of so many bytes.
func NewBudget(limit int64) *Budget { return &Budget{limit: limit} }

// Take holds n bytes, or returns false and holds none.
func (b *Budget) Take(n int64) bool {
	for {
		used := b.used.Load()
		if used+n > b.limit {
			return false
		}
		if b.used.CompareAndSwap(used, used+n) {
			return true
		}
	}
}

// Give gives n bytes back.
func (b *Budget) Give(n int64) { b.used.Add(-n) }

// Used returns the bytes that are held now.
func (b *Budget) Used() int64 { return b.used.Load() }
