package llmgw

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

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

// onOffArg reads exactly one argument, on or off.
func onOffArg(d *caddyfile.Dispenser, into **bool) error {
	option, text := d.Val(), ""
	if err := oneArg(d, &text); err != nil {
		return err
	}
	if text != "on" && text != "off" {
		return d.Errf("%s: %q is neither on nor off", option, text)
	}
	on := text == "on"
	*into = &on
	return nil
}
