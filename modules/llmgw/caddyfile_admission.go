package llmgw

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/dustin/go-humanize"

	"github.com/llmgw/llmgw/modules/internal/admit"
	"github.com/llmgw/llmgw/modules/internal/catalog"
)

// parseBand reads the block `band`.
func (a *App) parseBand(d *caddyfile.Dispenser) error {
	var name string
	if err := oneArg(d, &name); err != nil {
		return err
	}
	if a.Bands == nil {
		a.Bands = make(map[string]*Band)
	}
	b := a.Bands[name]
	if b == nil {
		b = new(Band)
		a.Bands[name] = b
	}
	at := *d // errors of the whole block are of its first line
	shipped := slices.ContainsFunc(admit.Bands(), func(s admit.Band) bool { return s.Name == name })
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		if err := b.option(d); err != nil {
			return err
		}
		// Its bounds, with the line at hand.
		whole := admit.NewBand(name)
		whole.Ceiling = 1
		b.change(&whole)
		if _, err := admit.CheckBands([]admit.Band{whole}); err != nil {
			return d.WrapErr(err)
		}
	}
	if !b.whole() && !shipped {
		return at.WrapErr(errNotWhole(name))
	}
	return nil
}

func (b *Band) option(d *caddyfile.Dispenser) error {
	switch d.Val() {
	case "priority":
		n, err := intArg(d)
		b.Priority = &n
		return err
	case "ceiling":
		return positiveArg(d, &b.Ceiling)
	case "deadline":
		return durationArg(d, time.Millisecond, &b.Deadline)
	case "queue":
		n, err := intArg(d)
		b.Queue = &n
		return err
	case "engine_priority":
		n, err := intArg(d)
		b.EnginePriority = &n
		return err
	case "aging":
		return agingArg(d, &b.Aging)
	}
	return d.Errf("unknown band option %q: use priority, ceiling, deadline, queue, engine_priority or aging", d.Val())
}

// parseAdmission reads the block `admission`, of the app or of a model.
func parseAdmission(d *caddyfile.Dispenser, into **Admission) error {
	if d.NextArg() {
		return d.ArgErr()
	}
	if *into == nil {
		*into = new(Admission)
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		if err := (*into).option(d); err != nil {
			return err
		}
		// Its bounds, with the line at hand.
		if err := (*into).apply(new(catalog.Model)); err != nil {
			return d.WrapErr(err)
		}
	}
	return nil
}

func (c *Admission) option(d *caddyfile.Dispenser) error {
	switch option := d.Val(); option {
	case "target_waiting":
		return positiveArg(d, &c.TargetWaiting)
	case "kv_ceiling":
		return positiveArg(d, &c.KVCeiling)
	case "kv_reserve":
		c.KVReserve = new(float64)
		return numberArg(d, c.KVReserve)
	case "queue_ttl":
		return durationArg(d, time.Millisecond, &c.QueueTTL)
	case "max_queued":
		args := d.RemainingArgs()
		if len(args) < 1 || len(args) > 2 {
			return d.ArgErr()
		}
		n, err := parseNumber(args[0])
		if err != nil || n != float64(int(n)) || n < 1 || n > maxWaits {
			return d.Errf("max_queued %s: must be a whole number from 1 to %d", args[0], maxWaits)
		}
		c.MaxQueued = int(n)
		if len(args) == 2 {
			size, err := humanize.ParseBytes(args[1])
			if err != nil || size < 1 || size > maxWaitBytes {
				return d.Errf("max_queued: %q is not a size from 1 byte to 1TiB, such as 1GiB", args[1])
			}
			c.MaxQueuedBytes = int64(size)
		}
		return nil
	case "aggregate":
		if err := oneArg(d, &c.Aggregate); err != nil || c.Aggregate != "" {
			return err
		}
		return d.Err("aggregate: use mean or p90")
	case "replica_wait":
		return durationArg(d, time.Millisecond, &c.ReplicaWait)
	default:
		return d.Errf("unknown admission option %q: use target_waiting, kv_ceiling, kv_reserve, queue_ttl, max_queued, aggregate or replica_wait", option)
	}
}

// numberArg reads exactly one number.
func numberArg(d *caddyfile.Dispenser, into *float64) error {
	option, text := d.Val(), ""
	if err := oneArg(d, &text); err != nil {
		return err
	}
	v, err := parseNumber(text)
	if err != nil {
		return d.Errf("%s: %q is not a number", option, text)
	}
	*into = v
	return nil
}

// positiveArg reads exactly one number above 0, which stands for the default in
// JSON.
func positiveArg(d *caddyfile.Dispenser, into *float64) error {
	option := d.Val()
	err := numberArg(d, into)
	if err == nil && *into <= 0 {
		return d.Errf("%s %v: must be above 0", option, *into)
	}
	return err
}

// agingArg reads exactly one duration, or off, which is kept as a negative one.
func agingArg(d *caddyfile.Dispenser, into *caddy.Duration) error {
	text := ""
	if err := oneArg(d, &text); err != nil {
		return err
	}
	if text == "off" {
		*into = -1
		return nil
	}
	v, err := caddy.ParseDuration(text)
	if err != nil || v < time.Millisecond {
		return d.Errf("aging: %q is neither off nor a duration of at least 1ms, such as 30s, and of less than 292 years", text)
	}
	*into = caddy.Duration(v)
	return nil
}

// HasPlaceholder reports whether a value is for Caddy's replacer to make.
func HasPlaceholder(value string) bool {
	_, rest, ok := strings.Cut(value, "{")
	return ok && strings.Contains(rest, "}")
}

// CheckBandNames reports an option `band` of the directive, or of a key in it, that
// names no band of the config, with its line. Placeholders are for later. It leaves
// the directive's tokens to be read.
func CheckBandNames(h httpcaddyfile.Helper) error {
	app := new(App)
	if option, ok := h.Option("llmgw").(httpcaddyfile.App); ok {
		if err := json.Unmarshal(option.Value, app); err != nil {
			return err
		}
	}
	var err error
	if app.bands, err = app.buildBands(); err != nil {
		return nil //nolint:nilerr // the app says so when it is provisioned
	}
	d := *h.Dispenser
	for line := -1; d.Next(); {
		first := d.Line() != line
		line = d.Line()
		if !first || d.Val() != "band" || !d.NextArg() {
			continue
		}
		name := d.Val()
		if more := d; !more.NextArg() && !HasPlaceholder(name) && !app.HasBand(name) {
			return d.WrapErr(app.ErrNoBand(name))
		}
	}
	return nil
}
