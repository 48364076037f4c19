package llmgw

import (
	"strconv"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/dustin/go-humanize"
)

func parsePrefix(d *caddyfile.Dispenser, into **Prefix) error {
	if d.NextArg() {
		return d.ArgErr()
	}
	if *into == nil {
		*into = new(Prefix)
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		var err error
		switch d.Val() {
		case "session":
			(*into).Session, err = parseSession(d)
		case "tree":
			(*into).Tree, err = parseTree(d)
		case "events":
			(*into).Events, err = parseEvents(d)
		case "isolation":
			err = onOffArg(d, &(*into).Isolation)
		default:
			err = d.Errf("unknown prefix option %q: use session, tree, events or isolation", d.Val())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// parseSession reads `session <header> [<load>] | off`.
func parseSession(d *caddyfile.Dispenser) (*Session, error) {
	args, s := d.RemainingArgs(), new(Session)
	switch {
	case len(args) == 1 && args[0] == "off":
		s.Off = true
	case len(args) > 1 && args[0] == "off":
		return nil, d.Err("session off takes no load")
	case len(args) == 1 || len(args) == 2:
		s.Header = args[0]
		if len(args) == 2 {
			load, err := parseNumber(args[1])
			if err != nil {
				return nil, d.Errf("session load %q is not a number", args[1])
			}
			if err := checkLoad(load); err != nil {
				return nil, d.WrapErr(err)
			}
			s.Load = load
		}
	default:
		return nil, d.ArgErr()
	}
	return s, nil
}

// parseTree reads `tree <threshold> [<abs> <rel> [<memory>]] | on | off`.
func parseTree(d *caddyfile.Dispenser) (*Tree, error) {
	args, t := d.RemainingArgs(), new(Tree)
	switch {
	case len(args) == 1 && (args[0] == "on" || args[0] == "off"):
		t.Off = args[0] == "off"
		return t, nil
	case len(args) != 1 && len(args) != 3 && len(args) != 4:
		return nil, d.Err("tree wants a threshold, or that and how unequal load may be (16 1.5), or these and a size (512MiB); or on, or off")
	}
	threshold, err := parseNumber(args[0])
	if err != nil {
		return nil, d.Errf("tree threshold %q is not a number", args[0])
	}
	t.Threshold = &threshold
	if len(args) >= 3 {
		n, err := strconv.Atoi(args[1])
		if err != nil {
			return nil, d.Errf("tree balance %q is not a whole number", args[1])
		}
		t.BalanceAbs = &n
		if t.BalanceRel, err = parseNumber(args[2]); err != nil {
			return nil, d.Errf("tree balance %q is not a number", args[2])
		}
		if t.BalanceRel == 0 { // in JSON the default, here a mistake
			return nil, d.Errf("tree balance %s: must be from 1 to 1000 times as many", args[2])
		}
	}
	if len(args) == 4 {
		size, err := humanize.ParseBytes(args[3])
		if err != nil || size == 0 || size > maxTreeMemory {
			return nil, d.Errf("tree memory %q is not a size from 1MiB to 1TiB, such as 512MiB", args[3])
		}
		t.Memory = int64(size)
	}
	if err := t.check(); err != nil {
		return nil, d.WrapErr(err)
	}
	return t, nil
}

// parseEvents reads `events on [<token budget>] | off`.
func parseEvents(d *caddyfile.Dispenser) (*Events, error) {
	args := d.RemainingArgs()
	if len(args) == 0 || len(args) > 2 || args[0] != "on" && args[0] != "off" || len(args) == 2 && args[0] == "off" {
		return nil, d.Err("events wants on or off, and after on how long a request may wait for its tokens (50ms)")
	}
	e := &Events{On: args[0] == "on"}
	if len(args) == 2 {
		v, err := caddy.ParseDuration(args[1])
		if err != nil || v < time.Millisecond || v > maxTokenBudget {
			return nil, d.Errf("events: a token budget of %q: must be a duration from 1ms to %v", args[1], maxTokenBudget)
		}
		e.TokenBudget = caddy.Duration(v)
	}
	return e, nil
}
