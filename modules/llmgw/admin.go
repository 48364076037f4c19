package llmgw

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/llmgw/llmgw/modules/internal/exchange"
	"github.com/llmgw/llmgw/modules/internal/fleet"
	"github.com/llmgw/llmgw/modules/internal/pipeline"
	"github.com/llmgw/llmgw/modules/schedule"
)

// ErrNotFound says that an operator named something that there is not.
var ErrNotFound = errors.New("not found")

// ReplicaStatus is what is known of one replica. A number that nobody knows is
// null.
type ReplicaStatus struct {
	Replica string   `json:"replica"`
	State   string   `json:"state"`
	Reason  string   `json:"reason,omitempty"`
	Since   *string  `json:"since,omitempty"`
	Models  []string `json:"models"`
	Pools   []string `json:"pools"`
	// Lists is what the engine's own /v1/models has; null if it was never read.
	Lists []string `json:"lists"`

	Inflight      int      `json:"inflight"`
	PendingTokens int64    `json:"pending_tokens"`
	Waiting       *float64 `json:"waiting"`
	Running       *float64 `json:"running"`
	KVUsage       *float64 `json:"kv_usage"`
	BatchCapacity *float64 `json:"batch_capacity"`
	DrainRate     *float64 `json:"drain_rate"`

	// Metrics is ok, stale, frozen, none (the engine has no metrics page) or unknown.
	Metrics      string   `json:"metrics"`
	MetricsError string   `json:"metrics_error,omitempty"`
	Missing      []string `json:"metrics_missing,omitempty"`
	AgeSeconds   *float64 `json:"metrics_age_seconds"`

	// Adapters are the LoRA adapters that it lists, was asked to load, or could not load.
	Adapters []AdapterStatus `json:"adapters,omitempty"`

	// KVEvents says how far its KV cache is known by its events, by data-parallel rank.
	KVEvents []KVStatus `json:"kv_events,omitempty"`
}

// AdapterStatus is how far a replica is with a LoRA adapter: ready, which is the engine's own word,
// loading, failed, or unknown while the replica is down.
type AdapterStatus struct {
	Name   string  `json:"name"`
	Path   string  `json:"path,omitempty"`
	Status string  `json:"status"`
	Reason string  `json:"reason,omitempty"`
	Since  *string `json:"since,omitempty"`
}

func adapterStatuses(r *fleet.Replica) (all []AdapterStatus) {
	for _, a := range r.AdapterStatuses() {
		s := AdapterStatus{Name: a.Name, Path: a.Path, Status: string(a.State), Reason: a.Reason}
		if !a.Since.IsZero() {
			text := a.Since.UTC().Format(time.RFC3339)
			s.Since = &text
		}
		all = append(all, s)
	}
	return all
}

// ListReplicas returns all replicas, sorted by ID.
func (a *App) ListReplicas() []ReplicaStatus {
	list := []ReplicaStatus{}
	for _, r := range a.shared.fleet.Replicas() {
		list = append(list, a.replicaStatus(r))
	}
	return list
}

func (a *App) replicaStatus(r *fleet.Replica) ReplicaStatus {
	at := now()
	var c schedule.Replica
	r.Fill(&c, at, 0, 0)
	if c.Waiting.Known() {
		c.Waiting = r.Stats().Waiting // as scraped, not as estimated
	}
	s := ReplicaStatus{
		Replica: r.ID, State: c.State.String(), Inflight: c.Inflight, PendingTokens: c.PendingTokens,
		Waiting: number(c.Waiting), Running: number(c.Running), KVUsage: number(c.KVUsage),
		BatchCapacity: number(c.BatchCapacity), DrainRate: number(c.DrainRate),
		Models: []string{}, Pools: []string{}, Metrics: "unknown", KVEvents: a.kvStatus(r),
		Adapters: adapterStatuses(r),
	}
	reason, since := r.Health.Reason()
	if reason == "" {
		reason, since = r.Breaker.Reason()
	}
	if reason == "" {
		reason, since = r.Full()
	}
	if reason != "" {
		text := since.UTC().Format(time.RFC3339)
		s.Reason, s.Since = reason, &text
	}
	s.Lists, _ = r.Models()
	for _, m := range a.runtime.Catalog.Models() {
		for _, e := range m.Endpoints {
			if e.Replica != r {
				continue
			}
			s.Models = append(s.Models, m.Name)
			if !slices.Contains(s.Pools, e.Pool) {
				s.Pools = append(s.Pools, e.Pool)
			}
		}
	}
	stats := r.Stats()
	s.Missing, s.MetricsError = stats.Missing, stats.Failed
	switch {
	case stats.Failed != "":
		s.Metrics = "stale"
	case stats.NoMetrics:
		s.Metrics = "none"
	case stats.Frozen:
		s.Metrics = "frozen"
	case !stats.At.IsZero():
		s.Metrics = "ok"
	}
	if !stats.At.IsZero() {
		age := at.Sub(stats.At).Seconds()
		s.AgeSeconds = &age
	}
	return s
}

func number(g schedule.Gauge) *float64 {
	if !g.Known() {
		return nil
	}
	v := math.Round(float64(g)*1e6) / 1e6
	return &v
}

// Drain starts or ends the drain of a replica and returns its status; false if
// there is no such replica.
func (a *App) Drain(id string, on bool) (ReplicaStatus, bool) {
	r := a.shared.fleet.Find(id)
	if r == nil {
		return ReplicaStatus{}, false
	}
	r.SetDraining(on)
	return a.replicaStatus(r), true
}

// Explanation is a decision for a model that was not carried out.
type Explanation struct {
	Model      string   `json:"model"`
	Fallbacks  []string `json:"fallbacks,omitempty"`
	Profile    string   `json:"profile"`
	Picker     string   `json:"picker"`
	Pool       string   `json:"pool,omitempty"`
	Saturation float64  `json:"saturation"`
	Spilled    bool     `json:"spilled"`
	Pick       string   `json:"pick"`
	// Cache says what became of the wish to go where the prompt's beginning is held, Shared is
	// the share of the prompt up to which others are like it, and Spread is true if that is to be on more
	// replicas, since so many prompts begin with it.
	Cache      string    `json:"cache_decision"`
	Shared     float64   `json:"shared"`
	Spread     bool      `json:"spread"`
	Candidates []Verdict `json:"candidates"`
	Admission  Admitted  `json:"admission"`
}

// Verdict is what a decision found about one candidate.
type Verdict struct {
	Replica  string `json:"replica"`
	Pool     string `json:"pool"`
	Rejected string `json:"rejected,omitempty"`
	// Cached is the share of the prompt that the replica is taken to hold, null if nobody keeps
	// count; Held how many bytes of all prompts.
	Cached *float64 `json:"cached"`
	Held   int64    `json:"held_bytes"`
	Total  float64  `json:"total"`
	Scores []Score  `json:"scores,omitempty"`
}

// Score is one scorer's part of a total.
type Score struct {
	Scorer string  `json:"scorer"`
	Value  float64 `json:"value"`
	Weight float64 `json:"weight"`
}

// explanation gives a decision its names in JSON.
func explanation(model string, e pipeline.Explanation) Explanation {
	out := Explanation{
		Model: model, Profile: e.Profile, Picker: e.Picker, Pool: e.Pool,
		Saturation: e.Saturation, Spilled: e.Spilled, Pick: e.Pick, Cache: string(e.Cache), Shared: e.Shared, Spread: e.Spread,
		Candidates: []Verdict{},
	}
	for _, v := range e.Candidates {
		verdict := Verdict{Replica: v.Replica, Pool: v.Pool, Rejected: v.Rejected, Cached: number(v.Cached), Held: v.Held, Total: v.Total}
		for _, s := range v.Scores {
			verdict.Scores = append(verdict.Scores, Score(s))
		}
		out.Candidates = append(out.Candidates, verdict)
	}
	return out
}

// Question is a request that [App.Explain] decides about.
type Question struct {
	exchange.Question
	// Band "" is the default one.
	Band string
}

// Explain decides as for a request, without sending it.
func (a *App) Explain(ctx context.Context, q *Question) (Explanation, error) {
	f, profile, band := &q.Fields, q.Profile, q.Band
	m := a.runtime.Catalog.Resolve(f.Model)
	if m == nil {
		return Explanation{}, fmt.Errorf("the model %q: %w; there are: %q", f.Model, ErrNotFound, a.runtime.Catalog.Names())
	}
	if profile != "" && !a.HasProfile(profile) {
		return Explanation{}, fmt.Errorf("the routing profile %q: %w; there are: %s", profile, ErrNotFound, profileNames(a.runtime.Profiles))
	}
	if band != "" && !a.HasBand(band) {
		return Explanation{}, fmt.Errorf("%w: %w", ErrNotFound, a.ErrNoBand(band))
	}
	out := explanation(m.Name, a.runtime.Explain(ctx, m, &q.Question))
	out.Fallbacks = m.Fallbacks
	out.Admission = a.admitted(m, q)
	return out, nil
}
