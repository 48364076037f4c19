package llmgw

import (
	"errors"
	"fmt"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/llmgw/llmgw/modules/internal/catalog"
)

// defaultReliability is what happens when a replica fails, unless config says
// otherwise.
var defaultReliability = catalog.Reliability{
	Retries: 2, ResendAfterSend: true, Cooldown: 15 * time.Second,
	FirstToken: 2 * time.Minute, IdleToken: time.Minute, Total: 30 * time.Minute,
}

const defaultConnectTimeout = 2 * time.Second

// minDuration is the least of all durations here.
const minDuration = time.Millisecond

// maxRetries bounds the retries: Caddy's proxy asks ten times at most.
const maxRetries = 8

// apply checks the settings and puts those that are set into c. It takes a nil
// receiver, which sets none.
func (r *Reliability) apply(c *catalog.Reliability) error {
	if r == nil {
		return nil
	}
	if r.Retries != nil {
		c.Retries = *r.Retries
	}
	if r.ResendAfterSend != nil {
		c.ResendAfterSend = *r.ResendAfterSend
	}
	var faults []error
	if c.Retries < 0 || c.Retries > maxRetries {
		faults = append(faults, fmt.Errorf("retries %d: must be from 0 to %d", c.Retries, maxRetries))
	}
	for _, d := range []struct {
		name  string
		value caddy.Duration
		into  *time.Duration
	}{
		{"cooldown", r.Cooldown, &c.Cooldown},
		{"first_token_timeout", r.FirstTokenTimeout, &c.FirstToken},
		{"idle_token_timeout", r.IdleTokenTimeout, &c.IdleToken},
		{"total_timeout", r.TotalTimeout, &c.Total},
		{"connect_timeout", r.ConnectTimeout, new(time.Duration)},
	} {
		if d.value == 0 {
			continue
		}
		*d.into = time.Duration(d.value)
		if *d.into < minDuration {
			faults = append(faults, fmt.Errorf("%s %v: must be at least %v", d.name, *d.into, minDuration))
		}
	}
	return errors.Join(faults...)
}

// ConnectTimeout returns how long making a connection to a replica may take.
func (a *App) ConnectTimeout() time.Duration {
	if a.Reliability != nil && a.Reliability.ConnectTimeout != 0 {
		return time.Duration(a.Reliability.ConnectTimeout)
	}
	return defaultConnectTimeout
}

// parseReliability reads the block `reliability`, of the app or of a model.
func parseReliability(d *caddyfile.Dispenser, into **Reliability) error {
	if d.NextArg() {
		return d.ArgErr()
	}
	if *into == nil {
		*into = new(Reliability)
	}
	r := *into
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		var err error
		switch d.Val() {
		case "retries":
			var n int
			n, err = intArg(d)
			r.Retries = &n
		case "resend_after_send":
			err = onOffArg(d, &r.ResendAfterSend)
		case "cooldown":
			err = durationArg(d, minDuration, &r.Cooldown)
		case "connect_timeout":
			err = durationArg(d, minDuration, &r.ConnectTimeout)
		case "first_token_timeout":
			err = durationArg(d, minDuration, &r.FirstTokenTimeout)
		case "idle_token_timeout":
			err = durationArg(d, minDuration, &r.IdleTokenTimeout)
		case "total_timeout":
			err = durationArg(d, minDuration, &r.TotalTimeout)
		default:
			err = d.Errf("unknown reliability option %q", d.Val())
		}
		if err != nil {
			return err
		}
	}
	return nil
}
