package llmgw

import (
	"fmt"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/llmgw/llmgw/modules/schedule"
)

func init() {
	for name, s := range map[string]schedule.Scorer{
		"queue": schedule.Queue{}, "kv": schedule.KV{}, "load": schedule.Load{},
		"pending": schedule.Pending{}, "inflight": schedule.Inflight{},
		"ttft":    schedule.TTFT{},
		"session": schedule.Session{}, "pool-priority": schedule.PoolPriority{},
		"prefix": schedule.Prefix{}, "spread": schedule.Spread{}, "cost": schedule.Cost{}, "lora": schedule.LoRA{},
	} {
		caddy.RegisterModule(shippedScorer{name: name, Scorer: s})
	}
	for name, p := range map[string]schedule.Picker{
		"max_score": schedule.MaxScore{}, "p2c": schedule.P2C{},
		"round_robin": schedule.RoundRobin{}, "random": schedule.Random{},
	} {
		caddy.RegisterModule(shippedPicker{name: name, Picker: p})
	}
	caddy.RegisterModule(new(Softmax))
}

// shippedScorer makes a module of a scorer that takes no config.
type shippedScorer struct {
	name            string
	schedule.Scorer `json:"-"`
}

// CaddyModule returns the Caddy module information.
func (s shippedScorer) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  caddy.ModuleID("llmgw.scorers." + s.name),
		New: func() caddy.Module { return &shippedScorer{name: s.name, Scorer: s.Scorer} },
	}
}

// UnmarshalCaddyfile takes no options.
func (s *shippedScorer) UnmarshalCaddyfile(d *caddyfile.Dispenser) error { return noOptions(d) }

// shippedPicker makes a module of a picker that takes no config.
type shippedPicker struct {
	name            string
	schedule.Picker `json:"-"`
}

// CaddyModule returns the Caddy module information.
func (p shippedPicker) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  caddy.ModuleID("llmgw.pickers." + p.name),
		New: func() caddy.Module { return &shippedPicker{name: p.name, Picker: p.Picker} },
	}
}

// UnmarshalCaddyfile takes no options.
func (p *shippedPicker) UnmarshalCaddyfile(d *caddyfile.Dispenser) error { return noOptions(d) }

// Softmax picks at random with probability proportional to
// exp(total/temperature). Syntax:
//
//	pick softmax <temperature>
type Softmax struct {
	// How much chance there is, in units of the total score: 0 always takes
	// the best, a high one takes any. Default: 0
	Temperature float64 `json:"temperature,omitempty"`
}

// CaddyModule returns the Caddy module information.
func (*Softmax) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "llmgw.pickers.softmax",
		New: func() caddy.Module { return new(Softmax) },
	}
}

// Validate refuses a negative temperature.
func (s *Softmax) Validate() error {
	if !(s.Temperature >= 0 && s.Temperature <= 1e6) {
		return fmt.Errorf("temperature %v: must be 0 or more", s.Temperature)
	}
	return nil
}

// Pick implements schedule.Picker.
func (s *Softmax) Pick(req *schedule.Request, replicas []*schedule.Replica, totals []float64) int {
	return schedule.Softmax{Temperature: s.Temperature}.Pick(req, replicas, totals)
}

// UnmarshalCaddyfile reads the temperature.
func (s *Softmax) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // softmax
	if !d.NextArg() {
		return d.ArgErr()
	}
	t, err := parseNumber(d.Val())
	if err != nil {
		return d.Errf("temperature %q is not a number", d.Val())
	}
	s.Temperature = t
	return noOptions(d)
}

// noOptions refuses whatever follows.
func noOptions(d *caddyfile.Dispenser) error {
	if d.Val() == "" {
		d.Next()
	}
	if d.NextArg() {
		return d.ArgErr()
	}
	if d.NextBlock(0) {
		return d.Errf("unknown option %q", d.Val())
	}
	return nil
}

// Interface guards.
var (
	_ schedule.Picker       = (*Softmax)(nil)
	_ caddy.Validator       = (*Softmax)(nil)
	_ caddyfile.Unmarshaler = (*Softmax)(nil)
	_ caddyfile.Unmarshaler = (*shippedScorer)(nil)
	_ caddyfile.Unmarshaler = (*shippedPicker)(nil)
)
