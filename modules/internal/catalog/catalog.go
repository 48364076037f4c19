// Package catalog knows the models: their names and aliases, and the endpoints
// that serve each. It belongs to one config and is replaced with it.
package catalog

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/llmgw/llmgw/modules/internal/fleet"
	"github.com/llmgw/llmgw/modules/schedule"
)

// TLS is how to speak to an https endpoint. It is comparable, so that
// endpoints with the same settings can share connections.
type TLS struct {
	// CAFile is a PEM file of the authorities to trust; "" means the system's.
	CAFile string
	// ServerName is the name that the certificate must hold; "" means the
	// endpoint's host.
	ServerName string
	// InsecureSkipVerify accepts any certificate.
	InsecureSkipVerify bool
}

// Endpoint is one replica as one model's config sees it. Immutable.
type Endpoint struct {
	// Replica holds the live facts.
	Replica *fleet.Replica
	// Pool names the unit of placement, Priority orders the pools (the highest
	// is filled first), Weight scales the load (1 is normal).
	Pool     string
	Priority int
	Weight   float64
	// Slots is how many requests the engine can run at once; 0 lets llmgw learn it.
	Slots int
	// Schedules says that the engine goes by the priority field of a request.
	Schedules bool
	// ServedModel is the name that the engine knows the model by; "" is the
	// model's own name.
	ServedModel string
	// Engine is vllm, sglang or llamacpp; "" is told from its metrics.
	Engine string
	// APIKey is sent to the engine as a bearer token; "" sends none.
	APIKey string
	// Metrics overrides metric names: field (waiting, running, kv_usage) to
	// name.
	Metrics map[string]string
	// TLS applies to https URLs.
	TLS TLS
	// Adapter is the LoRA adapter that the model is, which the engine loads when it is asked to;
	// nil if the model is none, or is there from the engine's start.
	Adapter *Adapter
	// KVEvents and KVReplay are where it publishes events of its KV cache, and sends past ones;
	// "" lets the gateway ask it.
	KVEvents, KVReplay string
}

// Adapter is a LoRA adapter that engines load when they are asked to. Immutable.
type Adapter struct {
	fleet.Adapter
	// Base is the name by which the engine knows the model that it is an adapter of.
	Base string
}

// Served returns the name to ask this endpoint for. What the engine lists as an adapter now may have
// another than config, or the list, says.
func (e *Endpoint) Served(m *Model) string {
	if a, ok := e.Listed(m); ok && a.Served != "" {
		return a.Served
	}
	return cmp.Or(e.ServedModel, m.Name)
}

// Listed returns the adapter that the model is for the endpoint's engine, if that lists it as one.
func (e *Endpoint) Listed(m *Model) (fleet.Adapter, bool) {
	return e.Replica.Listed(cmp.Or(e.ServedModel, m.Name))
}

// Reliability is what happens when a replica fails.
type Reliability struct {
	// Retries is how many further replicas a request may be sent to.
	Retries int
	// ResendAfterSend allows one of these after a request was sent and its
	// connection broke without an answer: the replica may have begun it.
	ResendAfterSend bool
	// Cooldown is how long a replica that keeps failing is left alone at most.
	Cooldown time.Duration
	// FirstToken bounds the wait for the first token of a stream, or for the
	// answer of any other request; IdleToken that between two tokens; Total the
	// whole request.
	FirstToken, IdleToken, Total time.Duration
}

// Prefix is how a model's requests find replicas whose caches hold their beginning.
type Prefix struct {
	// Tree says that the gateway remembers which prompts went where.
	Tree bool
	// Rules say when that counts.
	Rules schedule.PrefixRules
	// Isolation separates the cached prompts of tenants.
	Isolation bool
	// Events says that the replicas' own word counts for what they hold, and TokenBudget how
	// long a request may wait for the tokens of its prompt for that.
	Events      bool
	TokenBudget time.Duration
}

// Admission is when a model's requests wait, and for how long.
type Admission struct {
	// KVReserve is the share of the KV cache that is left free when requests are
	// let through by their tokens, in [0, 1).
	KVReserve float64
	// P90 takes the fullest but a tenth of a pool's replicas for how full it is,
	// instead of the mean.
	P90 bool
	// QueueTTL is how long a request may wait at most.
	QueueTTL time.Duration
	// MaxQueued and MaxQueuedBytes bound the requests that wait, and their bodies.
	MaxQueued      int
	MaxQueuedBytes int64
	// ReplicaWait is how long a request waits for a replica while there is none; 0
	// refuses it at once.
	ReplicaWait time.Duration
}

// Model is a logical model. Immutable but for its sequence.
type Model struct {
	// Name is the logical name, Aliases are other names for it.
	Name    string
	Aliases []string
	// Fallbacks name the models that serve its requests while none of its own
	// replicas can, the first of them first. Their own fallbacks do not count.
	Fallbacks []string
	// Profile names its routing profile; "" is the default one.
	Profile string
	// SessionHeader names the request header that identifies a session, and
	// SessionLoad bounds how far above the mean load sessions may push a
	// replica; a SessionLoad of 0 turns session affinity off.
	SessionHeader string
	SessionLoad   float64
	// Prefix is how requests find replicas that hold their beginning.
	Prefix Prefix
	// TargetWaiting and KVCeiling are what fills a replica.
	TargetWaiting, KVCeiling float64
	// Admission is when its requests wait.
	Admission Admission
	// Reliability is what happens when a replica fails.
	Reliability Reliability
	// AdapterTimeout bounds the loading of the adapter that it is.
	AdapterTimeout time.Duration
	// Endpoints serve it.
	Endpoints []*Endpoint

	sequence *atomic.Uint64
}

// Next returns a number that rises by one with each call for this model.
func (m *Model) Next() uint64 { return m.sequence.Add(1) - 1 }

// Upcoming returns the number that Next would return, without taking it.
func (m *Model) Upcoming() uint64 { return m.sequence.Load() }

// Catalog resolves names to models. Safe for concurrent use.
type Catalog struct {
	static []*Model
	// learning endpoints serve what their /v1/models lists.
	learning []*Endpoint
	defaults Model

	mu   sync.Mutex // one Relearn at a time
	view atomic.Pointer[view]
}

type view struct {
	byName map[string]*Model
	sorted []*Model
}

// New returns a catalog of the given models, and of those that the learning
// endpoints list. defaults holds the settings of learned models. It reports
// names that are used twice.
func New(models []*Model, learning []*Endpoint, defaults Model) (*Catalog, error) {
	seen := make(map[string]string)
	for _, m := range models {
		for _, name := range append([]string{m.Name}, m.Aliases...) {
			if other, ok := seen[name]; ok {
				return nil, fmt.Errorf("model %q: the name or alias %q is taken by model %q", m.Name, name, other)
			}
			seen[name] = m.Name
		}
		m.sequence = new(atomic.Uint64)
	}
	for _, m := range models {
		for _, name := range m.Fallbacks {
			switch other, ok := seen[name]; {
			case other == m.Name:
				return nil, fmt.Errorf("model %q: fallback %q is the model itself", m.Name, name)
			case !ok && len(learning) == 0: // else a replica may list it
				return nil, fmt.Errorf("model %q: fallback %q: there is no such model", m.Name, name)
			}
		}
	}
	c := &Catalog{static: models, learning: learning, defaults: defaults}
	c.Relearn()
	return c, nil
}

// Relearn brings the catalog up to date with what the learning endpoints list
// now. Call it when that changed.
func (c *Catalog) Relearn() {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.view.Load()
	v := &view{byName: make(map[string]*Model)}
	for _, m := range c.static {
		own := *m
		own.Endpoints = slices.Clone(m.Endpoints)
		for _, name := range append([]string{m.Name}, m.Aliases...) {
			v.byName[name] = &own
		}
		v.sorted = append(v.sorted, &own)
	}
	for _, e := range c.learning {
		names, _ := e.Replica.Models()
		for _, name := range names {
			m := v.byName[name]
			if m == nil {
				m = c.learned(name, old)
				v.byName[name] = m
				v.sorted = append(v.sorted, m)
			}
			if slices.ContainsFunc(m.Endpoints, func(o *Endpoint) bool { return o.Replica == e.Replica }) {
				// Declared for this model, or listed under an alias of it before.
				continue
			}
			joined := *e
			joined.ServedModel = name
			m.Endpoints = append(m.Endpoints, &joined)
		}
	}
	slices.SortFunc(v.sorted, func(a, b *Model) int { return strings.Compare(a.Name, b.Name) })
	c.view.Store(v)
}

// learned returns a model of the given name that no config declares. It keeps
// the sequence of the one before.
func (c *Catalog) learned(name string, old *view) *Model {
	m := c.defaults
	m.Name, m.Aliases, m.Fallbacks, m.Endpoints = name, nil, nil, nil
	m.sequence = new(atomic.Uint64)
	if old != nil && old.byName[name] != nil {
		m.sequence = old.byName[name].sequence
	}
	return &m
}

// Resolve returns the model of the given name or alias, or nil.
func (c *Catalog) Resolve(name string) *Model { return c.view.Load().byName[name] }

// Models returns all models, sorted by name.
func (c *Catalog) Models() []*Model { return c.view.Load().sorted }

// Names returns all names and aliases, sorted.
func (c *Catalog) Names() []string { return slices.Sorted(maps.Keys(c.view.Load().byName)) }

// Incomplete reports whether a learning endpoint that is not known to be down
// was never asked with success what it serves: a model that is not known may
// still turn up.
func (c *Catalog) Incomplete() bool {
	return slices.ContainsFunc(c.learning, func(e *Endpoint) bool {
		_, asked := e.Replica.Models()
		return !asked && e.Replica.State() == schedule.Ready
	})
}

// Learning returns the endpoints whose models are learned.
func (c *Catalog) Learning() []*Endpoint { return c.learning }
