package llmgw

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"

	"github.com/llmgw/llmgw/modules/internal/pipeline"
	"github.com/llmgw/llmgw/modules/schedule"
)

// weighted is a scorer of a shipped profile.
type weighted struct {
	name   string
	weight float64
}

// shippedProfiles are the routing profiles that need no config. Session affinity
// is for requests that have a session: it finds their replica where nobody knows which prompts
// went where any more, or ever did.
var shippedProfiles = map[string]struct {
	scorers []weighted
	picker  string
}{
	"chat":         {[]weighted{{"prefix", 4}, {"ttft", 2}, {"spread", 2}, {"session", 3}, {"lora", 2}, {"queue", 1}, {"kv", 1}, {"inflight", 1}}, `{"name":"p2c"}`},
	"batch":        {[]weighted{{"queue", 3}, {"kv", 1}, {"load", 1}, {"lora", 2}, {"prefix", 0.5}, {"session", 0.5}, {"inflight", 1}}, `{"name":"max_score"}`},
	"long-context": {[]weighted{{"kv", 3}, {"prefix", 2}, {"ttft", 2}, {"spread", 1}, {"session", 2}, {"lora", 1}, {"queue", 1}, {"pending", 1}, {"inflight", 1}}, `{"name":"softmax","temperature":0.2}`},
	"debug":        {nil, `{"name":"round_robin"}`},
}

// defaultPicker is the picker of a profile that names none.
const defaultPicker = `{"name":"p2c"}`

// profiles builds the shipped routing profiles, changed by config, and those
// that config adds.
func (a *App) profiles(ctx caddy.Context) (map[string]*pipeline.Profile, error) {
	profiles := make(map[string]*pipeline.Profile)
	names := slices.Collect(maps.Keys(shippedProfiles))
	for name := range a.Routing {
		if _, shipped := shippedProfiles[name]; !shipped {
			names = append(names, name)
		}
	}
	var faults []error
	for _, name := range names {
		p, err := buildProfile(ctx, name, a.Routing[name])
		if err != nil {
			faults = append(faults, fmt.Errorf("routing %q: %w", name, err))
		}
		profiles[name] = p
	}
	return profiles, errors.Join(faults...)
}

// noProfile says that config, or an operator, names a routing profile that does
// not exist.
func noProfile(profiles map[string]*pipeline.Profile, name string) error {
	return fmt.Errorf("there is no routing profile %q; there are: %s", name, profileNames(profiles))
}

// NoProfile does so for whoever has the app.
func (a *App) NoProfile(name string) error { return noProfile(a.runtime.Profiles, name) }

func profileNames(profiles map[string]*pipeline.Profile) string {
	return strings.Join(slices.Sorted(maps.Keys(profiles)), ", ")
}

func buildProfile(ctx caddy.Context, name string, r *Routing) (*pipeline.Profile, error) {
	if r == nil {
		r = new(Routing)
	}
	p := &pipeline.Profile{Name: name}
	shipped, isShipped := shippedProfiles[name]
	var order []string
	weights := make(map[string]float64)
	raw := make(map[string]json.RawMessage)
	set := func(name string, weight float64, config json.RawMessage) {
		if _, ok := weights[name]; !ok {
			order = append(order, name)
		}
		weights[name], raw[name] = weight, config
	}
	for _, s := range shipped.scorers {
		set(s.name, s.weight, nil)
	}
	if !isShipped {
		// The router's own counts repair what scraping shows too late, so they
		// always take part unless config says otherwise.
		set("inflight", 1, nil)
	}
	for _, s := range r.Scorers {
		name, config, err := splitName(s.ScorerRaw)
		if err != nil {
			return nil, fmt.Errorf("scorer: %w", err)
		}
		if !(s.Weight >= 0 && s.Weight <= 1e6) {
			return nil, fmt.Errorf("score %s: weight %v must be from 0 to 1000000", name, s.Weight)
		}
		set(name, s.Weight, config)
	}
	for _, name := range order {
		if weights[name] == 0 {
			continue
		}
		v, err := loadPlugin(ctx, scorers, name, raw[name])
		if err != nil {
			return nil, fmt.Errorf("score %s: %w", name, err)
		}
		scorer, ok := v.(schedule.Scorer)
		if !ok {
			return nil, fmt.Errorf("score %s: %T is not a schedule.Scorer", name, v)
		}
		p.Scorers = append(p.Scorers, pipeline.WeightedScorer{Name: name, Weight: weights[name], Scorer: scorer})
	}
	for _, f := range r.FiltersRaw {
		name, config, err := splitName(f)
		if err != nil {
			return nil, fmt.Errorf("filter: %w", err)
		}
		v, err := loadPlugin(ctx, filters, name, config)
		if err != nil {
			return nil, fmt.Errorf("filter %s: %w", name, err)
		}
		filter, ok := v.(schedule.Filter)
		if !ok {
			return nil, fmt.Errorf("filter %s: %T is not a schedule.Filter", name, v)
		}
		p.Filters = append(p.Filters, pipeline.NamedFilter{Name: name, Filter: filter})
	}
	return p, loadPicker(ctx, p, r.PickerRaw, shipped.picker)
}

func loadPicker(ctx caddy.Context, p *pipeline.Profile, raw json.RawMessage, shipped string) error {
	if raw == nil {
		raw = json.RawMessage(shipped)
	}
	if len(raw) == 0 {
		raw = json.RawMessage(defaultPicker)
	}
	name, config, err := splitName(raw)
	if err != nil {
		return fmt.Errorf("picker: %w", err)
	}
	v, err := loadPlugin(ctx, pickers, name, config)
	if err != nil {
		return fmt.Errorf("pick %s: %w", name, err)
	}
	picker, ok := v.(schedule.Picker)
	if !ok {
		return fmt.Errorf("pick %s: %T is not a schedule.Picker", name, v)
	}
	p.PickerName, p.Picker = name, picker
	return nil
}

// The namespaces of plugins.
const (
	scorers = "llmgw.scorers."
	filters = "llmgw.filters."
	pickers = "llmgw.pickers."
)

func loadPlugin(ctx caddy.Context, namespace, name string, config json.RawMessage) (any, error) {
	if err := installed(namespace, name); err != nil {
		return nil, err
	}
	return ctx.LoadModuleByID(namespace+name, config)
}

// installed says which plugins there are in a namespace, unless the named one is
// among them.
func installed(namespace, name string) error {
	if _, err := caddy.GetModule(namespace + name); err == nil {
		return nil
	}
	kind := strings.TrimSuffix(strings.TrimPrefix(namespace, "llmgw."), "s.")
	var names []string
	for _, m := range caddy.GetModules(strings.TrimSuffix(namespace, ".")) {
		names = append(names, m.ID.Name())
	}
	if names == nil {
		return fmt.Errorf("there is no %s %q, nor any other: plugins bring them", kind, name)
	}
	return fmt.Errorf("there is no %s %q; there are: %s", kind, name, strings.Join(names, ", "))
}

// splitName takes the inline key "name" out of a plugin's config. Caddy's own
// loader does the same, but keeps the name, and the name decides here whether
// a scorer changes a shipped one.
func splitName(raw json.RawMessage) (string, json.RawMessage, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil {
		return "", nil, fmt.Errorf("must be an object with a name: %w", err)
	}
	var name string
	if err := json.Unmarshal(fields["name"], &name); err != nil || name == "" {
		return "", nil, errors.New("must have a name")
	}
	delete(fields, "name")
	config, err := json.Marshal(fields)
	return name, config, err
}
