package llmgw

import (
	"strconv"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

func (a *App) parseModel(d *caddyfile.Dispenser) error {
	m := new(Model)
	if err := oneArg(d, &m.Name); err != nil {
		return err
	}
	for _, other := range a.Models {
		if other.Name == m.Name {
			return d.Errf("model %q is declared twice", m.Name)
		}
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		var err error
		switch d.Val() {
		case "alias":
			err = someArgs(d, &m.Aliases)
		case "fallback":
			err = someArgs(d, &m.Fallbacks)
		case "routing":
			err = oneArg(d, &m.Routing)
		case "prefix":
			err = parsePrefix(d, &m.Prefix)
		case "reliability":
			err = parseReliability(d, &m.Reliability)
		case "admission":
			err = parseAdmission(d, &m.Admission)
		case "adapter":
			a := new(Adapter)
			if !d.AllArgs(&a.Name, &a.Path) {
				return d.ArgErr()
			}
			m.Adapters = append(m.Adapters, a)
		case "adapter_timeout":
			err = durationArg(d, minAdapterTimeout, &m.AdapterTimeout)
		case "endpoint":
			err = parseEndpoint(d, &m.Endpoints)
		default:
			err = d.Errf("unknown model option %q", d.Val())
		}
		if err != nil {
			return err
		}
	}
	a.Models = append(a.Models, m)
	return nil
}

func parseEndpoint(d *caddyfile.Dispenser, into *[]*Endpoint) error {
	e := &Endpoint{Addresses: d.RemainingArgs()}
	if len(e.Addresses) == 0 {
		return d.ArgErr()
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		if err := e.parseOption(d); err != nil {
			return err
		}
	}
	*into = append(*into, e)
	return nil
}

func (e *Endpoint) parseOption(d *caddyfile.Dispenser) error {
	switch option := d.Val(); option {
	case "pool":
		return oneArg(d, &e.Pool)
	case "priority":
		n, err := intArg(d)
		e.Priority = &n
		return err
	case "weight":
		n, err := intArg(d)
		if err == nil && (n < 1 || n > maxWeight) {
			return d.Errf("weight %d: must be from 1 to %d", n, maxWeight)
		}
		e.Weight = n
		return err
	case "batch_capacity":
		n, err := intArg(d)
		if err == nil && (n < 1 || n > maxBatch) {
			return d.Errf("batch_capacity %d: must be from 1 to %d", n, maxBatch)
		}
		e.BatchCapacity = n
		return err
	case "priority_scheduling":
		if d.NextArg() {
			return d.ArgErr()
		}
		e.PriorityScheduling = true
		return nil
	case "served_model":
		return oneArg(d, &e.ServedModel)
	case "engine":
		return oneArg(d, &e.Engine)
	case "api_key":
		err := oneArg(d, &e.APIKey)
		if err == nil && e.APIKey == "" {
			return d.Err("api_key: " + emptyKey)
		}
		return err
	case "metric":
		var field, name string
		if !d.AllArgs(&field, &name) {
			return d.ArgErr()
		}
		if e.Metrics == nil {
			e.Metrics = make(map[string]string)
		}
		e.Metrics[field] = name
		return nil
	case "kv_events":
		args := d.RemainingArgs()
		if len(args) != 1 && len(args) != 2 {
			return d.ArgErr()
		}
		if e.KVEvents = args[0]; len(args) == 2 {
			e.KVReplay = args[1]
		}
		if err := e.checkKVEvents(); err != nil {
			return d.WrapErr(err)
		}
		return nil
	case "tls_ca":
		return oneArg(d, &e.TLSCA)
	case "tls_server_name":
		return oneArg(d, &e.TLSServerName)
	case "tls_insecure_skip_verify":
		if d.NextArg() {
			return d.ArgErr()
		}
		e.TLSInsecureSkipVerify = true
		return nil
	default:
		return d.Errf("unknown endpoint option %q", option)
	}
}

// someArgs adds one or more arguments to a list.
func someArgs(d *caddyfile.Dispenser, into *[]string) error {
	args := d.RemainingArgs()
	if len(args) == 0 {
		return d.ArgErr()
	}
	*into = append(*into, args...)
	return nil
}

// intArg reads exactly one whole number.
func intArg(d *caddyfile.Dispenser) (int, error) {
	option, text := d.Val(), ""
	if err := oneArg(d, &text); err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, d.Errf("%s: %q is not a whole number", option, text)
	}
	return n, nil
}
