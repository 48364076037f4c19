package llmgw

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/llmgw/llmgw/modules/internal/admit"
	"github.com/llmgw/llmgw/modules/internal/catalog"
)

// Band is a priority class.
type Band struct {
	// The highest goes first. Default: a shipped band's own; any other needs one
	Priority *int `json:"priority,omitempty"`

	// How saturated a model's replicas may be for the band's requests to go: 1 is
	// full, 1000 lets them always go. Default: a shipped band's own; any other
	// needs one
	Ceiling float64 `json:"ceiling,omitempty"`

	// How long its requests care to wait. One that would wait longer is refused at
	// once. Default: the queue_ttl
	Deadline caddy.Duration `json:"deadline,omitempty"`

	// How many of its requests may wait for each model, from 0 to 1000000.
	// Default: 2000
	Queue *int `json:"queue,omitempty"`

	// What goes into the requests' priority field, where the engine goes by it
	// (the endpoint's priority_scheduling). vLLM takes the lowest first. Default:
	// what the client sent stays
	EnginePriority *int `json:"engine_priority,omitempty"`

	// How long a request waits before its band gets one turn for each ten of
	// higher bands; below 0 means never. Default: 1m
	Aging caddy.Duration `json:"aging,omitempty"`
}

// Admission is when requests wait in the gateway instead of in an engine.
type Admission struct {
	// How many waiting requests fill a replica. Default: 4
	TargetWaiting float64 `json:"target_waiting,omitempty"`

	// The share of its KV cache in use that fills a replica, up to 1. Default: 0.9
	KVCeiling float64 `json:"kv_ceiling,omitempty"`

	// The share of the KV cache that is left free when requests are let through by
	// their tokens, from 0 to 0.9. Default: 0.15
	KVReserve *float64 `json:"kv_reserve,omitempty"`

	// How long a request may wait. Default: 30s
	QueueTTL caddy.Duration `json:"queue_ttl,omitempty"`

	// How many requests may wait for a model in all, and how many bytes of bodies.
	// Default: 4000 and 1073741824 (1 GiB)
	MaxQueued      int   `json:"max_queued,omitempty"`
	MaxQueuedBytes int64 `json:"max_queued_bytes,omitempty"`

	// How saturated a pool is: as the mean of its replicas, or with p90 as the fullest
	// but a tenth. Default: mean
	Aggregate string `json:"aggregate,omitempty"`

	// How long requests wait for a replica while the model has none that may be
	// used, instead of being refused. Default: 0, they are refused
	ReplicaWait caddy.Duration `json:"replica_wait,omitempty"`
}

// defaultAdmission is when requests wait, unless config says otherwise.
var defaultAdmission = catalog.Admission{
	KVReserve: 0.15, QueueTTL: 30 * time.Second, MaxQueued: 4000, MaxQueuedBytes: 1 << 30,
}

// The bounds of admission settings: beyond these a config means something else.
const (
	minTarget    = 0.001
	minCeiling   = 0.001
	maxTarget    = 10_000
	maxReserve   = 0.9
	maxWaits     = 10_000_000
	maxWaitBytes = 1 << 40
	maxTTL       = time.Hour
)

// apply checks the settings and puts those that are set into m. It takes a nil
// receiver, which sets none.
func (c *Admission) apply(m *catalog.Model) error {
	if c == nil {
		return nil
	}
	var faults []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	if c.TargetWaiting != 0 {
		check(c.TargetWaiting >= minTarget && c.TargetWaiting <= maxTarget, "target_waiting %v: must be from %v to %d", c.TargetWaiting, minTarget, maxTarget)
		m.TargetWaiting = c.TargetWaiting
	}
	if c.KVCeiling != 0 {
		check(c.KVCeiling >= minCeiling && c.KVCeiling <= 1, "kv_ceiling %v: must be from %v to 1", c.KVCeiling, minCeiling)
		m.KVCeiling = c.KVCeiling
	}
	if c.KVReserve != nil {
		check(*c.KVReserve >= 0 && *c.KVReserve <= maxReserve, "kv_reserve %v: must be from 0 to %v", *c.KVReserve, maxReserve)
		m.Admission.KVReserve = *c.KVReserve
	}
	if c.QueueTTL != 0 {
		check(time.Duration(c.QueueTTL) >= time.Millisecond && time.Duration(c.QueueTTL) <= maxTTL, "queue_ttl %v: must be from 1ms to %v", time.Duration(c.QueueTTL), maxTTL)
		m.Admission.QueueTTL = time.Duration(c.QueueTTL)
	}
	if c.MaxQueued != 0 {
		check(c.MaxQueued > 0 && c.MaxQueued <= maxWaits, "max_queued %d: must be from 1 to %d", c.MaxQueued, maxWaits)
		m.Admission.MaxQueued = c.MaxQueued
	}
	if c.MaxQueuedBytes != 0 {
		check(c.MaxQueuedBytes > 0 && c.MaxQueuedBytes <= maxWaitBytes, "max_queued_bytes %d: must be from 1 to %d", c.MaxQueuedBytes, maxWaitBytes)
		m.Admission.MaxQueuedBytes = c.MaxQueuedBytes
	}
	switch c.Aggregate {
	case "":
	case "mean", "p90":
		m.Admission.P90 = c.Aggregate == "p90"
	default:
		check(false, "aggregate %q: use mean or p90", c.Aggregate)
	}
	if c.ReplicaWait != 0 {
		check(time.Duration(c.ReplicaWait) >= time.Millisecond && time.Duration(c.ReplicaWait) <= maxTTL, "replica_wait %v: must be from 1ms to %v", time.Duration(c.ReplicaWait), maxTTL)
		m.Admission.ReplicaWait = time.Duration(c.ReplicaWait)
	}
	return errors.Join(faults...)
}

// buildBands returns the shipped bands as config changes them, and those that it adds.
func (a *App) buildBands() ([]admit.Band, error) {
	bands := admit.Bands()
	var faults []error
	for _, name := range slices.Sorted(maps.Keys(a.Bands)) {
		c := a.Bands[name]
		if c == nil {
			c = new(Band) // null says nothing
		}
		i := slices.IndexFunc(bands, func(b admit.Band) bool { return b.Name == name })
		if i < 0 {
			if !c.whole() {
				faults = append(faults, errNotWhole(name))
				continue
			}
			i, bands = len(bands), append(bands, admit.NewBand(name))
		}
		c.change(&bands[i])
	}
	bands, err := admit.CheckBands(bands)
	return bands, errors.Join(append(faults, err)...)
}

// whole reports whether c says enough for a band that is not a shipped one.
func (c *Band) whole() bool { return c.Priority != nil && c.Ceiling != 0 }

func errNotWhole(name string) error {
	return fmt.Errorf("band %q is not a shipped one: it needs a priority and a ceiling", name)
}

// change puts what is set into b.
func (c *Band) change(b *admit.Band) {
	if c.Priority != nil {
		b.Priority = *c.Priority
	}
	if c.Ceiling != 0 {
		b.Ceiling = c.Ceiling
	}
	if c.Queue != nil {
		b.Queue = *c.Queue
	}
	if c.EnginePriority != nil {
		b.EnginePriority = c.EnginePriority
	}
	if c.Deadline != 0 {
		b.Deadline = time.Duration(c.Deadline)
	}
	if c.Aging != 0 {
		b.Aging = max(0, time.Duration(c.Aging))
	}
}

// HasBand reports whether there is a band of that name.
func (a *App) HasBand(name string) bool {
	return slices.ContainsFunc(a.bands, func(b admit.Band) bool { return b.Name == name })
}

// ErrNoBand says that config names a band that does not exist.
func (a *App) ErrNoBand(name string) error {
	names := make([]string, len(a.bands))
	for i, b := range a.bands {
		names[i] = b.Name
	}
	return fmt.Errorf("there is no band %q; there are: %q", name, names)
}

// admits makes this config's bands and models the ones that count for what waits, and its memory
// of prompts the one that lasts.
func (a *App) admits() {
	a.shared.remember(a.runtime.Prefix)
	a.shared.gate.Configure(a.bands, a.runtime.Catalog.Resolve)
}
