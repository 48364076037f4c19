package llmgw

import (
	"encoding/json"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
)

func init() {
	httpcaddyfile.RegisterGlobalOption("llmgw", parseGlobalOption)
}

// parseGlobalOption reads the global option `llmgw`. Every line is optional:
//
//	llmgw {
//		scrape_interval <duration>
//		default_profile <profile>
//		routing <profile> {
//			score <scorer> <weight> [{ <scorer's options> }]
//			filter <filter> [<filter's options>]
//			pick <picker> [<picker's options>]
//		}
//		prefix {
//			session <header> [<load>] | off
//			tree <threshold> [<abs> <rel> [<memory>]] | on | off
//			events on [<token budget>] | off
//			isolation on|off
//		}
//		reliability {
//			retries <number>
//			resend_after_send on|off
//			cooldown <duration>
//			connect_timeout <duration>
//			first_token_timeout <duration>
//			idle_token_timeout <duration>
//			total_timeout <duration>
//		}
//		band <name> {
//			priority <number>
//			ceiling <saturation>
//			deadline <duration>
//			queue <number>
//			engine_priority <number>
//			aging <duration>|off
//		}
//		admission {
//			target_waiting <number>
//			kv_ceiling <share>
//			kv_reserve <share>
//			queue_ttl <duration>
//			max_queued <number> [<size>]
//			aggregate mean|p90
//			replica_wait <duration>
//		}
//		model <name> {
//			alias <name...>
//			routing <profile>
//			prefix { ... }
//			reliability { ... }
//			admission { ... }
//			endpoint <address...> { ... }
//		}
//		endpoint <address...> {
//			pool <name>
//			priority <number>
//			weight <number>
//			batch_capacity <number>
//			priority_scheduling
//			served_model <name>
//			engine vllm|sglang|llamacpp
//			api_key <key>
//			metric waiting|running|kv_usage <name>
//			kv_events <tcp://host:port> [<tcp://host:port>]
//			tls_ca <file>
//			tls_server_name <name>
//			tls_insecure_skip_verify
//		}
//	}
//
// The option may be given several times; the blocks are merged.
func parseGlobalOption(d *caddyfile.Dispenser, existing any) (any, error) {
	app := new(App)
	if prior, ok := existing.(httpcaddyfile.App); ok {
		if err := json.Unmarshal(prior.Value, app); err != nil {
			return nil, d.WrapErr(err)
		}
	}
	if err := app.UnmarshalCaddyfile(d); err != nil {
		return nil, err
	}
	return httpcaddyfile.App{Name: "llmgw", Value: caddyconfig.JSON(app, nil)}, nil
}

// UnmarshalCaddyfile reads the global option; see [parseGlobalOption].
func (a *App) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // llmgw
	if d.NextArg() {
		return d.ArgErr()
	}
	var bands *caddyfile.Dispenser // at the last one's line
	for d.NextBlock(0) {
		var err error
		switch d.Val() {
		case "scrape_interval":
			err = durationArg(d, minScrapeInterval, &a.ScrapeInterval)
		case "default_profile":
			err = oneArg(d, &a.DefaultProfile)
		case "routing":
			err = a.parseRouting(d)
		case "prefix":
			err = parsePrefix(d, &a.Prefix)
		case "reliability":
			err = parseReliability(d, &a.Reliability)
		case "band":
			at := *d
			bands, err = &at, a.parseBand(d)
		case "admission":
			err = parseAdmission(d, &a.Admission)
		case "model":
			err = a.parseModel(d)
		case "endpoint":
			err = parseEndpoint(d, &a.Endpoints)
		default:
			err = d.Errf("unknown llmgw option %q", d.Val())
		}
		if err != nil {
			return err
		}
	}
	if bands == nil {
		return nil
	}
	// Together, and not one by one: two may trade their priorities.
	if _, err := a.buildBands(); err != nil {
		return bands.WrapErr(err)
	}
	return nil
}

func (a *App) parseRouting(d *caddyfile.Dispenser) error {
	var name string
	if err := oneArg(d, &name); err != nil {
		return err
	}
	if a.Routing == nil {
		a.Routing = make(map[string]*Routing)
	}
	r := a.Routing[name]
	if r == nil {
		r = new(Routing)
		a.Routing[name] = r
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		switch d.Val() {
		case "score":
			if err := r.parseScore(d); err != nil {
				return err
			}
		case "filter":
			raw, err := parsePlugin(d, filters)
			if err != nil {
				return err
			}
			r.FiltersRaw = append(r.FiltersRaw, raw)
		case "pick":
			raw, err := parsePlugin(d, pickers)
			if err != nil {
				return err
			}
			r.PickerRaw = raw
		default:
			return d.Errf("unknown routing option %q: use score, filter or pick", d.Val())
		}
	}
	return nil
}

// parseScore reads `score <scorer> <weight>` and hands what follows to the
// scorer's own parser.
func (r *Routing) parseScore(d *caddyfile.Dispenser) error {
	if d.CountRemainingArgs() < 2 {
		return d.ArgErr()
	}
	d.NextArg()
	segment := d.NextSegment()
	weight, err := parseNumber(segment[1].Text)
	if err != nil {
		return d.Errf("weight %q of scorer %s is not a number", segment[1].Text, segment[0].Text)
	}
	tokens := append([]caddyfile.Token{segment[0]}, segment[2:]...)
	inner := caddyfile.NewDispenser(tokens)
	inner.Next()
	raw, err := parseModule(inner, scorers)
	if err != nil {
		return err
	}
	r.Scorers = append(r.Scorers, WeightedScorer{Weight: weight, ScorerRaw: raw})
	return nil
}

// parsePlugin reads a plugin's name and hands what follows to its own parser.
func parsePlugin(d *caddyfile.Dispenser, namespace string) (json.RawMessage, error) {
	if !d.NextArg() {
		return nil, d.ArgErr()
	}
	return parseModule(d, namespace)
}

func parseModule(d *caddyfile.Dispenser, namespace string) (json.RawMessage, error) {
	name := d.Val()
	if err := installed(namespace, name); err != nil {
		return nil, d.WrapErr(err)
	}
	m, err := caddyfile.UnmarshalModule(d, namespace+name)
	if err != nil {
		return nil, err
	}
	return caddyconfig.JSONModuleObject(m, "name", name, nil), nil
}

// Interface guard.
var _ caddyfile.Unmarshaler = (*App)(nil)
