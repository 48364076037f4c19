package llmgw

import (
	"net/http"

	"go.uber.org/zap"

	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/internal/exchange"
	"github.com/llmgw/llmgw/modules/internal/fleet"
	"github.com/llmgw/llmgw/modules/internal/kvevents"
)

// What is known of KV caches by their events takes so many bytes at most, and the tokens of prompts that
// are remembered for it.
const (
	eventsMemory = 512 << 20
	tokensMemory = 64 << 20
)

// follows returns the replicas whose events are followed: those of models that have that on.
func (a *App) follows() []kvevents.Target {
	c := a.runtime.Catalog
	var all []kvevents.Target
	seen := make(map[*fleet.Replica]bool)
	add := func(on bool, endpoints []*catalog.Endpoint) {
		for _, e := range endpoints {
			if !on || seen[e.Replica] {
				continue
			}
			seen[e.Replica] = true
			t := kvevents.Target{Replica: e.Replica, APIKey: e.APIKey, Client: a.endpointClient(e)}
			if e.KVEvents != "" {
				t.Sources = []kvevents.Source{{Endpoint: e.KVEvents, Replay: e.KVReplay}}
			}
			all = append(all, t)
		}
	}
	for _, m := range c.Models() {
		add(m.Prefix.Events, m.Endpoints)
	}
	add(a.defaults.Prefix.Events, c.Learning())
	return all
}

// endpointClient returns the client for what is asked of an endpoint beside requests.
func (a *App) endpointClient(e *catalog.Endpoint) *http.Client {
	c, err := a.transport.client(e.TLS)
	if err != nil {
		return http.DefaultClient // it was made when the config was loaded
	}
	return c
}

// noTokens notes a request whose tokens were not to be had.
func (a *App) noTokens(x *exchange.Exchange, err error) {
	a.shared.metrics.noTokens.WithLabelValues(a.shared.metrics.model(x.ModelName()).name).Inc()
	a.log.Debug("no tokens of a prompt", zap.String("request_id", x.ID), zap.Error(err))
}

// KVStatus is what is known of a replica's KV cache by its events.
type KVStatus struct {
	Rank  int    `json:"rank"`
	State string `json:"state"`
	Error string `json:"error,omitempty"`
	// Blocks is how many it is known to have, LagSeconds how late the last events came.
	Blocks     int     `json:"blocks"`
	LagSeconds float64 `json:"lag_seconds"`
	Gaps       int64   `json:"gaps"`
	Replays    int64   `json:"replays"`
	Failures   int64   `json:"failures"`
	Orphans    int64   `json:"orphans"`
}

func (a *App) kvStatus(r *fleet.Replica) (all []KVStatus) {
	for i, f := range a.shared.kv.Ranks(r) {
		s := f.Status()
		all = append(all, KVStatus{
			Rank: i, State: string(s.State), Error: s.Error, Blocks: s.Blocks, LagSeconds: s.Lag.Seconds(),
			Gaps: s.Gaps, Replays: s.Replays, Failures: s.Failures, Orphans: s.Orphans,
		})
	}
	return all
}
