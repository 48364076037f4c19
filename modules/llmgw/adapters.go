package llmgw

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/internal/fleet"
	"github.com/llmgw/llmgw/modules/internal/scrape"
)

// What an engine may take to load an adapter, unless config says otherwise, and the bounds of that.
const (
	defaultAdapterTimeout = time.Minute
	minAdapterTimeout     = time.Second
	maxAdapterTimeout     = 10 * time.Minute
)

// The bounds of a model's adapters.
const (
	maxAdapters    = 1000
	maxAdapterPath = 4096
)

// buildAdapters makes models of a model's adapters: like it, but for the names and the fallbacks.
func (m *Model) buildAdapters(base *catalog.Model) (models []*catalog.Model, err error) {
	timeout := time.Duration(m.AdapterTimeout)
	if timeout == 0 {
		timeout = defaultAdapterTimeout
	}
	if timeout < minAdapterTimeout || timeout > maxAdapterTimeout {
		return nil, fmt.Errorf("adapter_timeout %v: must be from %v to %v", timeout, minAdapterTimeout, maxAdapterTimeout)
	}
	if len(m.Adapters) > maxAdapters {
		return nil, fmt.Errorf("%d adapters: at most %d", len(m.Adapters), maxAdapters)
	}
	named := make(map[string]bool)
	for i, a := range m.Adapters {
		if a == nil {
			return nil, fmt.Errorf("adapter %d is null", i+1)
		}
		if err := checkName(a.Name); err != nil {
			return nil, fmt.Errorf("adapter %d: %w", i+1, err)
		}
		if a.Path == "" || len(a.Path) > maxAdapterPath || strings.ContainsFunc(a.Path, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return nil, fmt.Errorf("adapter %q: the path is empty, longer than %d bytes, or has control characters", a.Name, maxAdapterPath)
		}
		if named[a.Name] {
			return nil, fmt.Errorf("adapter %q is named twice", a.Name)
		}
		named[a.Name] = true
		one := *base
		one.Name, one.Aliases, one.Fallbacks, one.AdapterTimeout = a.Name, nil, nil, timeout
		one.Endpoints = nil
		for _, e := range base.Endpoints {
			if !scrape.LoadsAdapters(e.Engine) {
				return nil, fmt.Errorf("adapter %q: %s loads its adapters when it starts: list it there, and declare it with served_model", a.Name, e.Engine)
			}
			at, served := *e, e.Served(base)
			if served == a.Name {
				return nil, fmt.Errorf("adapter %q has the name by which endpoint %s serves the model itself", a.Name, e.Replica.ID)
			}
			if e.Engine == "sglang" && strings.Contains(served, ":") {
				return nil, fmt.Errorf("adapter %q: SGLang takes %q up to its colon for the model, and the rest for an adapter: give it another name with --served-model-name", a.Name, served)
			}
			at.Adapter = &catalog.Adapter{Adapter: fleet.Adapter{Name: a.Name, Path: a.Path}, Base: served}
			at.ServedModel = scrape.ServedAdapter(e.Engine, served, a.Name)
			one.Endpoints = append(one.Endpoints, &at)
		}
		if len(one.Endpoints) == 0 {
			return nil, errors.New("adapters need an endpoint of the model's own")
		}
		models = append(models, &one)
	}
	return models, nil
}

// loadAdapter has an endpoint's engine load the adapter that a model is, for [exchange.Runtime].
func (a *App) loadAdapter(ctx context.Context, m *catalog.Model, e *catalog.Endpoint) error {
	client, err := a.transport.client(e.TLS)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, m.AdapterTimeout)
	defer cancel()
	t := scrape.Target{Replica: e.Replica, Engine: e.Engine, APIKey: e.APIKey, Client: client}
	begun, outcome := now(), "ok"
	if err = t.LoadAdapter(ctx, e.Adapter.Adapter); err != nil {
		outcome = "error"
		logger().Warn("replica could not load an adapter", "replica", e.Replica.ID, "adapter", e.Adapter.Name, "error", err)
	} else {
		logger().Info("replica has loaded an adapter", "replica", e.Replica.ID, "adapter", e.Adapter.Name, "took", now().Sub(begun))
	}
	a.shared.metrics.adapters.WithLabelValues(a.shared.metrics.model(m.Name).name, outcome).Inc()
	return err
}
