package llmgw

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

func parsePrefix(d *caddyfile.Dispenser, into **Prefix) error {
	if d.NextArg() {
		return d.ArgErr()
	}
	if *into == nil {
		*into = new(Prefix)
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		if d.Val() != "session" {
			return d.Errf("unknown prefix option %q: use session", d.Val())
		}
		args := d.RemainingArgs()
		s := new(Session)
		switch {
		case len(args) == 1 && args[0] == "off":
			s.Off = true
		case len(args) > 1 && args[0] == "off":
			return d.Err("session off takes no load")
		case len(args) == 1 || len(args) == 2:
			s.Header = args[0]
			if len(args) == 2 {
				load, err := parseNumber(args[1])
				if err != nil {
					return d.Errf("session load %q is not a number", args[1])
				}
				if err := checkLoad(load); err != nil {
					return d.WrapErr(err)
				}
				s.Load = load
			}
		default:
			return d.ArgErr()
		}
		(*into).Session = s
	}
	return nil
}

// durationArg reads exactly one duration, not below the least. In JSON 0 is the
// default; whoever writes it into a Caddyfile means something else by it.
func durationArg(d *caddyfile.Dispenser, least time.Duration, into *caddy.Duration) error {
	option, text := d.Val(), ""
	if err := oneArg(d, &text); err != nil {
		return err
	}
	v, err := caddy.ParseDuration(text)
	if err != nil {
		return d.Errf("%s: %q is not a duration such as 1s or 500ms", option, text)
	}
	if v < least {
		instead := "it cannot be turned off"
		switch {
		case strings.HasSuffix(option, "_timeout"):
			instead = `there is no "no limit"`
		case option == "replica_wait":
			instead = "leave it out to have none"
		case option == "deadline":
			instead = "leave it out for that of queue_ttl"
		}
		return d.Errf("%s %s: must be at least %v; %s", option, text, least, instead)
	}
	*into = caddy.Duration(v)
	return nil
}

// parseNumber reads a finite number: JSON has no others.
func parseNumber(text string) (float64, error) {
	v, err := strconv.ParseFloat(text, 64)
	if err == nil && (math.IsNaN(v) || math.IsInf(v, 0)) {
		err = strconv.ErrRange
	}
	return v, err
}

// oneArg reads exactly one argument.
func oneArg(d *caddyfile.Dispenser, into *string) error {
	if !d.AllArgs(into) {
		return d.ArgErr()
	}
	return nil
}
