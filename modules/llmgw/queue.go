package llmgw

import (
	"time"

	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/internal/exchange"
)

// Admitted is what admission would say of a request now. A number that nobody knows
// is null.
type Admitted struct {
	Band       string  `json:"band"`
	Ceiling    float64 `json:"ceiling"`
	Saturation float64 `json:"saturation"`
	// Refused is why the request would be refused; "" if it would not. Fallback is the
	// model that would serve it instead, or after its wait for a replica.
	Refused  string `json:"refused"`
	Fallback string `json:"fallback,omitempty"`
	// Waits is why the request would wait; "" if it would go at once.
	Waits       string   `json:"waits"`
	Ahead       int      `json:"requests_ahead"` // that wait in its band or above it
	TokensAhead int64    `json:"tokens_ahead"`
	WaitSeconds *float64 `json:"wait_seconds"`
	FreeSlots   *float64 `json:"free_slots"`
	Slots       *float64 `json:"slots"`
	Headroom    float64  `json:"headroom"`
	// HeadroomTokens is how much of the KV caches is left to higher bands.
	HeadroomTokens float64 `json:"headroom_tokens"`
}

// admitted asks the gate what it would say of a request.
func (a *App) admitted(m *catalog.Model, q *Question) Admitted {
	r := exchange.Admission(m, &q.Fields, q.Body, exchange.WorkGenerate)
	r.Band, r.Tenant = q.Band, q.Tenant
	for _, name := range m.Fallbacks {
		if f := a.runtime.Catalog.Resolve(name); f != nil {
			r.Fallbacks = append(r.Fallbacks, f)
		}
	}
	v := a.shared.gate.Explain(r)
	out := Admitted{
		Band: v.Band, Ceiling: v.Ceiling, Saturation: v.Saturation, Refused: string(v.Refused), Fallback: v.Fallback, Waits: v.Waits, Ahead: v.Ahead,
		TokensAhead: v.Tokens, FreeSlots: atLeast0(v.Free), Slots: atLeast0(v.Slots), Headroom: v.Headroom, HeadroomTokens: v.HeadroomTokens,
	}
	if v.EstimateKnown {
		seconds := v.Estimate.Seconds()
		out.WaitSeconds = &seconds
	}
	return out
}

func atLeast0(v float64) *float64 {
	if v < 0 {
		return nil
	}
	return &v
}

// Waiting is what waits for a model in a band.
type Waiting struct {
	Model         string  `json:"model"`
	Band          string  `json:"band"`
	Requests      int     `json:"requests"`
	Tokens        int64   `json:"tokens"`
	Bytes         int64   `json:"bytes"`
	OldestSeconds float64 `json:"oldest_seconds"`
}

// ListQueue returns what waits, by model and band.
func (a *App) ListQueue() []Waiting {
	list := []Waiting{}
	for _, d := range a.shared.gate.Depths() {
		list = append(list, Waiting{d.Model, d.Band, d.Requests, d.Tokens, d.Bytes, d.Oldest.Round(time.Millisecond).Seconds()})
	}
	return list
}
