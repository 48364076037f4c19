// Package zone is an example of a plugin for llmgw: a scorer that prefers
// replicas whose address begins with one of the given texts, such as those in
// the gateway's own rack or data centre.
package zone

import (
	"errors"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/llmgw/llmgw/modules/schedule"
)

func init() {
	caddy.RegisterModule(new(Zone))
}

// Zone scores 1 for replicas that are near and 0 for all others. Syntax:
//
//	score zone <weight> <beginning...>
type Zone struct {
	// How the addresses of near replicas begin: `10.1.` for a network,
	// `rack7-` for host names. At least one.
	Near []string `json:"near,omitempty"`
}

// CaddyModule returns the Caddy module information.
func (*Zone) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "llmgw.scorers.zone",
		New: func() caddy.Module { return new(Zone) },
	}
}

// Validate refuses a scorer that could not tell replicas apart.
func (z *Zone) Validate() error {
	if len(z.Near) == 0 {
		return errors.New("near is empty: give the beginning of at least one address, such as 10.1. or rack7-")
	}
	for _, beginning := range z.Near {
		if beginning == "" {
			return errors.New("near holds an empty text, which every address begins with")
		}
	}
	return nil
}

// Score implements schedule.Scorer. It neither allocates nor keeps its
// arguments, and is called from many goroutines at once.
func (z *Zone) Score(_ *schedule.Request, replicas []*schedule.Replica, scores []float64) {
	for i, r := range replicas {
		scores[i] = 0
		if z.near(r.ID) {
			scores[i] = 1
		}
	}
}

// near reports whether a replica's ID, host:port with https:// in front where
// TLS is spoken, begins as one of the near ones does.
func (z *Zone) near(id string) bool {
	host := strings.TrimPrefix(id, "https://")
	for _, beginning := range z.Near {
		if strings.HasPrefix(host, beginning) {
			return true
		}
	}
	return false
}

// UnmarshalCaddyfile reads what follows the weight.
func (z *Zone) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // zone
	if z.Near = d.RemainingArgs(); len(z.Near) == 0 {
		return d.ArgErr()
	}
	if d.NextBlock(0) {
		return d.Errf("unknown option %q of the scorer zone", d.Val())
	}
	return nil
}

// Interface guards.
var (
	_ schedule.Scorer       = (*Zone)(nil)
	_ caddy.Validator       = (*Zone)(nil)
	_ caddyfile.Unmarshaler = (*Zone)(nil)
)
