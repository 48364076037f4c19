package llmgw

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/internal/fleet"
	"github.com/llmgw/llmgw/modules/internal/scrape"
)

// buildEndpoints makes one endpoint per address and registers each replica for
// scraping. model is the model's name, "" for endpoints that are learned.
func (a *App) buildEndpoints(e *Endpoint, model string) ([]*catalog.Endpoint, error) {
	if len(e.Addresses) == 0 {
		return nil, errors.New("an endpoint needs an address")
	}
	repl := caddy.NewReplacer()
	proto := catalog.Endpoint{
		Pool: e.Pool, Priority: defaultPriority, Weight: float64(e.Weight) / defaultWeight,
		ServedModel: e.ServedModel, Engine: e.Engine, Metrics: e.Metrics,
		TLS: catalog.TLS{CAFile: e.TLSCA, ServerName: e.TLSServerName, InsecureSkipVerify: e.TLSInsecureSkipVerify},
	}
	if proto.Pool == "" {
		proto.Pool = defaultPool
	}
	if e.Priority != nil {
		proto.Priority = *e.Priority
	}
	switch {
	case e.Weight == 0:
		proto.Weight = 1
	case e.Weight < 0 || e.Weight > maxWeight:
		return nil, fmt.Errorf("weight %d: must be from 1 to %d", e.Weight, maxWeight)
	}
	if e.BatchCapacity < 0 || e.BatchCapacity > maxBatch {
		return nil, fmt.Errorf("batch_capacity %d: must be from 1 to %d", e.BatchCapacity, maxBatch)
	}
	proto.Slots, proto.Schedules = e.BatchCapacity, e.PriorityScheduling
	if e.Engine != "" && !slices.Contains(scrape.Engines(), e.Engine) {
		return nil, fmt.Errorf("engine %q is not one of %s", e.Engine, strings.Join(scrape.Engines(), ", "))
	}
	for field := range e.Metrics {
		if !slices.Contains(scrape.Fields, field) {
			return nil, fmt.Errorf("metric %q is not one of %s", field, strings.Join(scrape.Fields, ", "))
		}
	}
	if err := e.checkKVEvents(); err != nil {
		return nil, err
	}
	proto.KVEvents, proto.KVReplay = e.KVEvents, e.KVReplay
	if e.APIKey != "" {
		key, err := repl.ReplaceOrErr(e.APIKey, false, true)
		if err != nil {
			return nil, errors.New("api_key: a placeholder in it is unknown")
		}
		// White space around it, such as the line end of the file that it comes
		// from, is no part of it: a header could not carry it.
		if proto.APIKey = strings.TrimSpace(key); proto.APIKey == "" {
			return nil, errors.New("api_key: " + emptyKey)
		}
	}
	client, err := a.transport.client(proto.TLS)
	if err != nil {
		return nil, err
	}
	var built []*catalog.Endpoint
	for i, address := range e.Addresses {
		expanded, err := repl.ReplaceOrErr(address, true, true)
		if err != nil {
			return nil, fmt.Errorf("address %d: a placeholder in it is unknown or empty: %w", i+1, err)
		}
		u, err := parseAddress(expanded)
		if err != nil {
			// By its number, since it may hold a secret.
			return nil, fmt.Errorf("address %d: %w", i+1, err)
		}
		one := proto
		replica, release := a.shared.fleet.Hold(u)
		a.release = append(a.release, release)
		one.Replica = replica
		built = append(built, &one)
		served := one.ServedModel
		if served == "" {
			served = model
		}
		a.targets.add(scrape.Target{
			Replica: replica, Engine: one.Engine, Metrics: one.Metrics, APIKey: one.APIKey,
			Client: client, Interval: time.Duration(a.ScrapeInterval),
		}, served)
	}
	return built, nil
}

// emptyKey is what is said of a key that is not there.
const emptyKey = "the key is empty: is the environment variable or file that it comes from set?"

// parseAddress reads an endpoint's address.
func parseAddress(address string) (*url.URL, error) {
	u, err := fleet.ParseURL(address)
	if err == nil {
		return u, nil
	}
	// Of what is there for OpenAI's clients the end is wrong, and all that is
	// shown of an address is its beginning.
	if bare, ok := strings.CutSuffix(strings.TrimRight(address, "/"), "/v1"); ok {
		if u, bareErr := fleet.ParseURL(bare); bareErr == nil {
			return nil, fmt.Errorf("it ends in /v1: give it without, as in %s://%s; the gateway adds /v1 by itself", u.Scheme, u.Host)
		}
	}
	return nil, err
}

// checkKVEvents returns what is wrong with where events are.
func (e *Endpoint) checkKVEvents() error {
	for option, address := range map[string]string{"kv_events": e.KVEvents, "kv_replay": e.KVReplay} {
		if host, port, err := net.SplitHostPort(strings.TrimPrefix(address, "tcp://")); address != "" && (!strings.HasPrefix(address, "tcp://") || err != nil || host == "" || port == "") {
			return fmt.Errorf("%s %q: must be tcp://host:port", option, address)
		} else if n, err := strconv.ParseUint(port, 10, 16); address != "" && (err != nil || n == 0 || host == "*") {
			return fmt.Errorf("%s %q: must be tcp://host:port with a port from 1 to 65535, and a host to connect to: * is where an engine listens", option, address)
		}
	}
	switch {
	case e.KVReplay != "" && e.KVEvents == "":
		return errors.New("kv_replay needs kv_events")
	case e.KVEvents != "" && len(e.Addresses) > 1:
		return errors.New("kv_events is of one engine: give each address an endpoint of its own")
	}
	return nil
}

// targets collects what to scrape: one target per replica, even where it
// serves several models.
type targets struct {
	list      []scrape.Target
	byReplica map[*fleet.Replica]int
}

func (t *targets) add(target scrape.Target, served string) {
	i, ok := t.byReplica[target.Replica]
	if !ok {
		i = len(t.list)
		t.byReplica[target.Replica] = i
		t.list = append(t.list, target)
	}
	if served != "" {
		t.list[i].Models = append(t.list[i].Models, served)
	}
}

// transports makes one HTTP client per set of TLS settings for the side
// channels (metrics, models, health).
type transports struct {
	connectTimeout time.Duration

	mu      sync.Mutex
	clients map[catalog.TLS]*http.Client
}

// client returns the one for these settings. Those that the config lacks are a later one's, to whose
// replicas a request may go that has waited.
func (t *transports) client(s catalog.TLS) (*http.Client, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.clients[s]; c != nil {
		return c, nil
	}
	config, err := TLSConfig(s)
	if err != nil {
		return nil, err
	}
	// What has a shorter limit of its own, such as a scrape, is to end by that.
	patience := max(t.connectTimeout, 5*time.Second)
	c := scrape.NewClient(&http.Transport{
		TLSClientConfig: config, TLSHandshakeTimeout: patience,
		DialContext: (&net.Dialer{Timeout: patience}).DialContext,
		// Engines close idle connections after 5 s; a scrape comes each second.
		IdleConnTimeout: 4 * time.Second, MaxIdleConnsPerHost: 1, DisableCompression: true,
	})
	if t.clients == nil {
		t.clients = make(map[catalog.TLS]*http.Client)
	}
	t.clients[s] = c
	return c, nil
}

// close ends the idle connections.
func (t *transports) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.clients {
		c.CloseIdleConnections()
	}
}

// TLSConfig turns an endpoint's TLS settings into Go's.
func TLSConfig(s catalog.TLS) (*tls.Config, error) {
	c := &tls.Config{ServerName: s.ServerName, InsecureSkipVerify: s.InsecureSkipVerify, MinVersion: tls.VersionTLS12}
	if s.CAFile == "" {
		return c, nil
	}
	pem, err := os.ReadFile(s.CAFile)
	if err != nil {
		return nil, fmt.Errorf("tls_ca: %w", err)
	}
	c.RootCAs = x509.NewCertPool()
	if !c.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("tls_ca %s: no certificate in it", s.CAFile)
	}
	return c, nil
}
