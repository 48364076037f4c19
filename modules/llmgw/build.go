package llmgw

import (
	"errors"
	"fmt"
	"net/textproto"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/internal/exchange"
	"github.com/llmgw/llmgw/modules/internal/fleet"
)

// The defaults of the config.
const (
	defaultScrapeInterval = time.Second
	minScrapeInterval     = 100 * time.Millisecond
	defaultProfile        = "chat"
	defaultPool           = "default"
	defaultPriority       = 100
	defaultWeight         = 100
	defaultSessionHeader  = "x-session-id"
	defaultSessionLoad    = 1.25
	defaultTargetWaiting  = 4
	defaultKVCeiling      = 0.90
)

// The bounds of an endpoint's weight and batch capacity: beyond these a config
// means something else.
const (
	maxWeight = 10000
	maxBatch  = 100_000
)

// build turns the config into the runtime. It reports all faults at once.
func (a *App) build(ctx caddy.Context) error {
	if a.ScrapeInterval == 0 {
		a.ScrapeInterval = caddy.Duration(defaultScrapeInterval)
	}
	if a.ScrapeInterval < caddy.Duration(minScrapeInterval) {
		return fmt.Errorf("scrape_interval %v: must be at least %v", time.Duration(a.ScrapeInterval), minScrapeInterval)
	}
	if time.Duration(a.ScrapeInterval) > fleet.StatsMaxAge {
		return fmt.Errorf("scrape_interval %v: must be at most %v, after which values are unknown", time.Duration(a.ScrapeInterval), fleet.StatsMaxAge)
	}
	if a.DefaultProfile == "" {
		a.DefaultProfile = defaultProfile
	}
	profiles, err := a.profiles(ctx)
	if err != nil {
		return err
	}
	if profiles[a.DefaultProfile] == nil {
		return fmt.Errorf("default_profile: %w", noProfile(profiles, a.DefaultProfile))
	}
	if a.bands, err = a.buildBands(); err != nil {
		return err
	}
	defaults, err := a.modelDefaults(new(Model))
	if err != nil {
		return err
	}
	a.defaults = defaults
	a.transport.connectTimeout = a.ConnectTimeout()
	if a.statics.client, err = a.transport.client(catalog.TLS{}); err != nil {
		return err
	}
	a.targets.byReplica = make(map[*fleet.Replica]int)
	var faults []error
	var models []*catalog.Model
	for i, m := range a.Models {
		if m == nil {
			faults = append(faults, fmt.Errorf("models: entry %d is null", i))
			continue
		}
		built, err := a.buildModel(m, defaults)
		if err == nil && m.Routing != "" && profiles[m.Routing] == nil {
			err = fmt.Errorf("routing: %w", noProfile(profiles, m.Routing))
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("model %q: %w", m.Name, err))
			continue
		}
		adapters, err := m.buildAdapters(built)
		if err != nil {
			faults = append(faults, fmt.Errorf("model %q: %w", m.Name, err))
			continue
		}
		models = append(append(models, built), adapters...)
	}
	var learning []*catalog.Endpoint
	for i, e := range a.Endpoints {
		if e == nil {
			faults = append(faults, fmt.Errorf("endpoints: entry %d is null", i))
			continue
		}
		if e.ServedModel != "" {
			faults = append(faults, fmt.Errorf("endpoint with served_model %s: served_model needs a model around the endpoint", e.ServedModel))
			continue
		}
		built, err := a.buildEndpoints(e, "")
		if err != nil {
			faults = append(faults, fmt.Errorf("endpoint %d: %w", i+1, err))
		}
		learning = append(learning, built...)
	}
	if err := errors.Join(faults...); err != nil {
		return err
	}
	c, err := catalog.New(models, learning, defaults)
	if err != nil {
		return err
	}
	a.runtime = &exchange.Runtime{
		Catalog: c, Profiles: profiles, DefaultProfile: a.DefaultProfile,
		Retry: a.shared.retry, Budget: a.shared.budget, Gate: a.shared.gate, Prefix: a.shared.index(a.treeMemory()),
		KV: a.shared.kv, Tokens: a.shared.tokens, Client: a.endpointClient, NoTokens: a.noTokens,
		LoadAdapter: a.loadAdapter,
		Hold:        a.hold, Release: a.letGo,
		Ended: a.shared.metrics.ended, Picked: a.shared.metrics.picked,
		Now: now,
	}
	return nil
}

// WarnOfNoModels tells the log of a gateway that can serve nothing. It is for
// whoever needs models: a selection policy has upstreams instead.
func (a *App) WarnOfNoModels() {
	if len(a.Models)+len(a.Endpoints) == 0 {
		a.log.Warn("llm has no models: is the global option llmgw missing?")
	}
}

// modelDefaults are the settings of a model with these of its own.
func (a *App) modelDefaults(own *Model) (catalog.Model, error) {
	m := catalog.Model{
		SessionHeader: defaultSessionHeader, SessionLoad: defaultSessionLoad,
		TargetWaiting: defaultTargetWaiting, KVCeiling: defaultKVCeiling,
		Reliability: defaultReliability, Admission: defaultAdmission, Prefix: defaultPrefix,
	}
	if err := errors.Join(
		a.Reliability.apply(&m.Reliability), own.Reliability.apply(&m.Reliability),
		a.Admission.apply(&m), own.Admission.apply(&m),
		a.Prefix.apply(&m), own.Prefix.apply(&m),
	); err != nil {
		return m, err
	}
	m.SessionHeader = textproto.CanonicalMIMEHeaderKey(m.SessionHeader)
	return m, nil
}

func (a *App) buildModel(m *Model, defaults catalog.Model) (*catalog.Model, error) {
	if err := checkName(m.Name); err != nil {
		return nil, err
	}
	for _, alias := range m.Aliases {
		if err := checkName(alias); err != nil {
			return nil, fmt.Errorf("alias: %w", err)
		}
	}
	built, err := a.modelDefaults(m)
	if err != nil {
		return nil, err
	}
	if m.Reliability != nil && m.Reliability.ConnectTimeout != 0 {
		return nil, errors.New("connect_timeout is for all models together: give it outside of the model")
	}
	if m.Prefix != nil && m.Prefix.Tree != nil && m.Prefix.Tree.Memory != 0 {
		return nil, errors.New("the memory of prefix tree is for all models together: give it outside of the model")
	}
	built.Name, built.Aliases, built.Fallbacks, built.Profile = m.Name, m.Aliases, m.Fallbacks, m.Routing
	for i, e := range m.Endpoints {
		if e == nil {
			return nil, fmt.Errorf("endpoint %d is null", i+1)
		}
		list, err := a.buildEndpoints(e, m.Name)
		if err != nil {
			return nil, fmt.Errorf("endpoint %d: %w", i+1, err)
		}
		for _, one := range list {
			if slices.ContainsFunc(built.Endpoints, func(o *catalog.Endpoint) bool { return o.Replica == one.Replica }) {
				return nil, fmt.Errorf("endpoint %s is named twice", one.Replica.ID)
			}
			built.Endpoints = append(built.Endpoints, one)
		}
	}
	return &built, nil
}

// maxName bounds a model's name; longer ones are a mistake.
const maxName = 256

func checkName(name string) error {
	if name == "" {
		return errors.New("a model needs a name")
	}
	if len(name) > maxName || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return fmt.Errorf("the name %q is longer than %d bytes or has control characters", name[:min(len(name), 64)], maxName)
	}
	return nil
}
