package llmkeys

import (
	"strconv"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/llmgw/llmgw/modules/llmgw"
)

// UnmarshalCaddyfile reads the handler's directive:
//
//	llm_keys {
//		key <key> [{
//			name <name>
//			models <model...>
//			routing <profile>
//			profiles <profile...>
//			band <band>
//			weight <number>
//			debug
//		}]
//	}
func (h *Handler) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // llm_keys
	if d.NextArg() {
		return d.ArgErr()
	}
	for d.NextBlock(0) {
		if d.Val() != "key" {
			return d.Errf("unknown llm_keys option %q", d.Val())
		}
		var k Key
		if !d.AllArgs(&k.Key) {
			return d.ArgErr()
		}
		if k.Key == "" {
			return d.Err("the key is empty: is the environment variable that it comes from set?")
		}
		for nesting := d.Nesting(); d.NextBlock(nesting); {
			if err := k.option(d); err != nil {
				return err
			}
		}
		h.Keys = append(h.Keys, k)
	}
	return nil
}

func (k *Key) option(d *caddyfile.Dispenser) error {
	one := func(into *string) error {
		if !d.AllArgs(into) {
			return d.ArgErr()
		}
		return nil
	}
	some := func(into *[]string) error {
		if *into = append(*into, d.RemainingArgs()...); len(*into) == 0 {
			return d.ArgErr()
		}
		return nil
	}
	switch d.Val() {
	case "name":
		return one(&k.Name)
	case "models":
		return some(&k.Models)
	case "routing":
		return one(&k.Routing)
	case "profiles":
		return some(&k.Profiles)
	case "band":
		err := one(&k.Band)
		if llmgw.HasPlaceholder(k.Band) {
			return d.Errf("band %s: a key has a band of its own; a placeholder goes into `llm` or `llm_admission`", k.Band)
		}
		return err
	case "weight":
		var text string
		if err := one(&text); err != nil {
			return err
		}
		w, err := strconv.ParseFloat(text, 64)
		if err != nil || !(w >= minWeight && w <= maxWeight) {
			return d.Errf("weight %s: must be a number from %v to %v", text, minWeight, maxWeight)
		}
		k.Weight = w
		return nil
	case "debug":
		k.Debug = true
		if d.NextArg() {
			return d.ArgErr()
		}
		return nil
	}
	return d.Errf("unknown key option %q: use name, models, routing, profiles, band, weight or debug", d.Val())
}
