// Package fleet holds the live replicas: what llmgw itself knows of each
// (in-flight, completions, reachability, drain) and what the engine said last.
// It holds facts about the world only, never one config's settings, and so
// outlives every config.
package fleet

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// Fleet is the set of live replicas, keyed by their base URL. A replica lives
// as long as somebody holds it, so that a config that is being replaced and
// the one that replaces it share it. Safe for concurrent use.
type Fleet struct {
	// Gone is called with each replica that nobody holds any more. Nil means nobody cares. It
	// must be set before the first Hold and must not call the fleet.
	Gone func(*Replica)

	mu       sync.Mutex
	replicas map[string]*held
	now      func() time.Time
}

type held struct {
	replica *Replica
	holds   int
}

// New returns an empty fleet. now is the clock; nil means time.Now.
func New(now func() time.Time) *Fleet {
	if now == nil {
		now = time.Now
	}
	return &Fleet{replicas: make(map[string]*held), now: now}
}

// Hold returns the replica at the base URL, which [ParseURL] must have made,
// and keeps it alive until the returned release is called. Calling release
// again does nothing.
func (f *Fleet) Hold(base *url.URL) (r *Replica, release func()) {
	key := base.String()
	f.mu.Lock()
	defer f.mu.Unlock()
	h := f.replicas[key]
	if h == nil {
		h = &held{replica: newReplica(base, f.now)}
		f.replicas[key] = h
	}
	h.holds++
	return h.replica, sync.OnceFunc(func() { f.release(key, h) })
}

func (f *Fleet) release(key string, h *held) {
	f.mu.Lock()
	defer f.mu.Unlock()
	h.holds--
	// Requests that still run on it hold the pointer and count down to 0
	// there; a replica that comes back under this URL meanwhile is a new one.
	if h.holds == 0 && f.replicas[key] == h {
		delete(f.replicas, key)
		if f.Gone != nil {
			f.Gone(h.replica)
		}
	}
}

// Replicas returns all live replicas, sorted by ID.
func (f *Fleet) Replicas() []*Replica {
	f.mu.Lock()
	all := make([]*Replica, 0, len(f.replicas))
	for _, h := range f.replicas {
		all = append(all, h.replica)
	}
	f.mu.Unlock()
	slices.SortFunc(all, func(a, b *Replica) int { return strings.Compare(a.ID, b.ID) })
	return all
}

// Find returns the replica with the given ID, or nil.
func (f *Fleet) Find(id string) *Replica {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, h := range f.replicas {
		if h.replica.ID == id {
			return h.replica
		}
	}
	return nil
}

// ParseURL reads an endpoint's address: `host:port`, or a URL with scheme http
// or https and an optional path prefix. The port defaults to the scheme's. The
// result has scheme, host with port, and path without a trailing slash. Errors
// repeat no more of the address than its scheme and host, since the rest may
// hold a secret.
func ParseURL(address string) (*url.URL, error) {
	raw := address
	if !strings.Contains(raw, "://") {
		raw = "http://" + raw
	}
	u, err := url.Parse(raw)
	if err != nil {
		return nil, errors.New("not a valid address: want host:port, http://host:port or https://host:port")
	}
	fault := func(format string, args ...any) error {
		return fmt.Errorf("address %q: %w", u.Host, fmt.Errorf(format, args...))
	}
	if u.User != nil {
		return nil, fault("it holds credentials: use the api_key option")
	}
	if u.Scheme != "http" && u.Scheme != "https" {
		return nil, fault("scheme %q is not supported: use http or https", u.Scheme)
	}
	if u.RawQuery != "" || u.Fragment != "" {
		return nil, fault("a query or fragment is not allowed")
	}
	if !utf8.ValidString(u.Path) {
		return nil, errors.New("the path of an address must be UTF-8")
	}
	host, port := u.Hostname(), u.Port()
	if host == "" {
		return nil, errors.New("an address without a host: want host:port, http://host:port or https://host:port")
	}
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 0 {
		return nil, fault("port %q is not between 1 and 65535", port)
	}
	prefix := strings.TrimRight(u.Path, "/")
	if strings.HasSuffix(prefix, "/v1") {
		return nil, fault("give the address without /v1, which the gateway adds by itself")
	}
	return &url.URL{
		Scheme: u.Scheme,
		Host:   net.JoinHostPort(strings.ToLower(host), strconv.FormatUint(number, 10)),
		Path:   prefix,
	}, nil
}
