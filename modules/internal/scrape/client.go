package scrape

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/llmgw/llmgw/modules/internal/fleet"
	"github.com/llmgw/llmgw/modules/schedule"
)

// The limits of what an engine may answer.
const (
	maxModelsBody = 4 << 20
	maxModels     = 4000
	maxModelName  = 256
	maxRedirects  = 3
)

// NewClient returns a client for an engine's side channels (metrics, models,
// health) over the given transport. It follows redirects on the same host only
// (Python servers redirect /metrics to /metrics/), so that no engine can send
// llmgw, and the engine's key with it, elsewhere.
func NewClient(transport http.RoundTripper) *http.Client {
	return &http.Client{
		Transport: transport,
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if len(via) > maxRedirects {
				return fmt.Errorf("more than %d redirects", maxRedirects)
			}
			if first := via[0].URL; req.URL.Host != first.Host || req.URL.Scheme != first.Scheme {
				return errors.New("redirect to another host refused")
			}
			return nil
		},
	}
}

// errNoMetrics says that the engine has no metrics page.
var errNoMetrics = errors.New("the engine has no metrics page")

// errHidden says that it has one, but not for us, which is no fault of the
// engine's.
var errHidden = fmt.Errorf("%w for the gateway", errNoMetrics)

// get asks for a path below the replica's base URL. The caller bounds ctx and
// closes the body of the response.
func (t *Target) get(ctx context.Context, path string) (*http.Response, error) {
	u := *t.Replica.URL
	u.Path += path
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	return t.do(req)
}

// do sends a request to the engine.
func (t *Target) do(req *http.Request) (*http.Response, error) {
	if t.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+t.APIKey)
	}
	res, err := t.Client.Do(req)
	t.Replica.Health.Dialled(err)
	if err != nil {
		// The URL that url.Error repeats is known to whoever reads this.
		if ue, ok := errors.AsType[*url.Error](err); ok {
			err = ue.Err
		}
		return nil, err
	}
	return res, nil
}

// metrics scrapes the replica once.
func (t *Target) metrics(ctx context.Context) (*fleet.Stats, error) {
	res, err := t.get(ctx, "/metrics")
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	switch res.StatusCode {
	case http.StatusOK:
		return Parse(res.Body, t.Engine, t.Metrics, t.Models)
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return nil, errNoMetrics
	case http.StatusUnauthorized, http.StatusForbidden:
		return nil, errHidden
	}
	return nil, fmt.Errorf("/metrics answered %d", res.StatusCode)
}

// noMetrics are the statistics of an engine that has none.
func noMetrics(now time.Time) *fleet.Stats {
	return &fleet.Stats{
		At: now, NoMetrics: true,
		Waiting: schedule.Unknown, Running: schedule.Unknown, KVUsage: schedule.Unknown,
		Prompted: schedule.Unknown, Started: schedule.Unknown,
	}
}

// models asks what the engine serves: the ids of its models, adapters
// included, and the aliases that llama.cpp adds. What could not be a model's
// name in config is left out, and so is what is beyond the limits.
func (t *Target) models(ctx context.Context) (names []string, adapters []fleet.Adapter, err error) {
	res, err := t.get(ctx, "/v1/models")
	if err != nil {
		return nil, nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, nil, fmt.Errorf("/v1/models answered %d", res.StatusCode)
	}
	var list struct {
		Data []struct {
			ID      string   `json:"id"`
			Aliases []string `json:"aliases"`
			// Parent is the base model of an adapter, Root where that comes from.
			Parent *string `json:"parent"`
			Root   string  `json:"root"`
			// OwnedBy is the engine, in that engine's own words.
			OwnedBy string `json:"owned_by"`
		} `json:"data"`
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, maxModelsBody)).Decode(&list); err != nil {
		return nil, nil, fmt.Errorf("/v1/models is not the list of models that it should be: %w", err)
	}
	seen := make(map[string]bool)
	for _, m := range list.Data {
		for _, name := range append([]string{m.ID}, m.Aliases...) {
			if name == "" || len(name) > maxModelName || strings.ContainsFunc(name, unicode.IsControl) ||
				seen[name] || len(names) == maxModels {
				continue
			}
			seen[name] = true
			names = append(names, name)
			if m.Parent != nil && *m.Parent != "" {
				a := fleet.Adapter{Name: name, Path: m.Root}
				if how := loadings[cmp.Or(t.Engine, m.OwnedBy)]; how != nil {
					a.Served = how.served(*m.Parent, name)
				}
				adapters = append(adapters, a)
			}
		}
	}
	return names, adapters, nil
}

// probe asks whether the engine is there: "" if it is, else why not. An engine
// without a health page that answers at all is there.
func (t *Target) probe(ctx context.Context) string {
	res, err := t.get(ctx, "/health")
	if err != nil {
		return err.Error()
	}
	defer res.Body.Close()
	if res.StatusCode >= 500 && res.StatusCode != http.StatusNotImplemented {
		return "/health answered " + strconv.Itoa(res.StatusCode)
	}
	return ""
}
