package kvevents

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/llmgw/llmgw/modules/internal/fleet"
)

// Target is a replica whose events are followed.
type Target struct {
	// Replica is it.
	Replica *fleet.Replica
	// Sources are where its ranks publish; none means that it is asked for them
	// (vLLM's /kv_event_sources).
	Sources []Source
	// APIKey is sent as a bearer token; "" sends none.
	APIKey string
	// Client asks it.
	Client *http.Client
}

// Manager follows the events of replicas for as long as any attached config names them. Safe for
// concurrent use.
type Manager struct {
	index *Index
	log   func() *slog.Logger

	loops *fleet.Loops[Target]
	ranks sync.Map // *fleet.Replica -> *[]*Follower
}

// NewManager returns a manager without targets, whose index takes about so many bytes at most. log is
// called for each message.
func NewManager(memory int64, log func() *slog.Logger) *Manager {
	m := &Manager{index: NewIndex(memory), log: log}
	m.loops = fleet.NewLoops(func(t *Target) *fleet.Replica { return t.Replica }, m.run)
	return m
}

// Attach starts following the targets, see [fleet.Loops.Attach].
func (m *Manager) Attach(targets []Target) (detach func()) { return m.loops.Attach(targets) }

// Wait blocks until nothing is followed any more. Call it after the last detach.
func (m *Manager) Wait() { m.loops.Wait() }

// How often a replica is asked where it publishes, and while that fails.
const (
	askInterval = 30 * time.Second
	askPause    = 2 * time.Second
	askTimeout  = 2 * time.Second
)

// run follows one replica.
func (m *Manager) run(ctx context.Context, target *atomic.Pointer[Target]) {
	r := target.Load().Replica
	log := func() *slog.Logger { return m.log().With("replica", r.ID) }
	var sources []Source
	stop := func() {}
	said := ""
	defer func() {
		stop()
		m.ranks.Delete(r)
	}()
	for {
		now, err := target.Load().sources(ctx)
		pause := askInterval
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			if pause = askPause; said != err.Error() {
				said = err.Error()
				log().Warn("cannot learn where the replica publishes KV events: its prompts are known by where they were sent", "error", err)
			}
		case !slices.Equal(now, sources):
			stop()
			said, sources = "", now
			stop = m.follow(ctx, r, now, log)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// follow starts a follower for each rank.
func (m *Manager) follow(ctx context.Context, r *fleet.Replica, sources []Source, log func() *slog.Logger) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	followers := make([]*Follower, len(sources))
	for i, s := range sources {
		followers[i] = NewFollower(m.index, s, func(state State, err error) {
			switch {
			case state == Live:
				log().Info("KV events are followed", "rank", i)
			case err != nil:
				log().Warn("KV events are lost: its prompts are known by where they were sent", "rank", i, "error", err)
			}
		})
		running.Go(func() { followers[i].Run(ctx) })
	}
	m.ranks.Store(r, &followers)
	return func() {
		cancel()
		running.Wait()
	}
}

// Ranks returns the followers of a replica, none if it is not followed.
func (m *Manager) Ranks(r *fleet.Replica) []*Follower {
	if v, ok := m.ranks.Load(r); ok {
		return *v.(*[]*Follower)
	}
	return nil
}

// Size returns how many blocks are known of all caches together.
func (m *Manager) Size() int64 { return m.index.Size() }

// maxSources bounds what an engine says of where it publishes.
const maxSources = 64 << 10

var errNoSources = errors.New("it publishes none: is it started with --kv-events-config?")

// sources asks where the replica publishes, unless config says so.
func (t *Target) sources(ctx context.Context) ([]Source, error) {
	if len(t.Sources) > 0 {
		return t.Sources, nil
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	u := *t.Replica.URL
	u.Path += "/kv_event_sources"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	if t.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+t.APIKey)
	}
	res, err := t.Client.Do(req)
	if err != nil {
		if ue, ok := errors.AsType[*url.Error](err); ok {
			err = ue.Err
		}
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("/kv_event_sources answered %d: say where in the endpoint's kv_events", res.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxSources))
	if err != nil {
		return nil, err
	}
	return parseSources(body, t.Replica.URL.Hostname())
}

// parseSources reads what an engine on a host says.
func parseSources(body []byte, host string) ([]Source, error) {
	var ranks map[string]struct {
		Endpoint string  `json:"endpoint"`
		Replay   *string `json:"replay_endpoint"`
		Topic    string  `json:"topic"`
	}
	if err := json.Unmarshal(body, &ranks); err != nil {
		return nil, fmt.Errorf("/kv_event_sources is not what it should be: %w", err)
	}
	all := make([]Source, len(ranks))
	for name, s := range ranks {
		i, err := strconv.Atoi(name)
		if err != nil || i < 0 || i >= len(all) {
			return nil, fmt.Errorf("/kv_event_sources has the rank %.20q of %d", name, len(all))
		}
		if all[i].Endpoint, err = reach(s.Endpoint, host); err != nil {
			return nil, err
		}
		if s.Replay != nil && *s.Replay != "" {
			if all[i].Replay, err = reach(*s.Replay, host); err != nil {
				return nil, err
			}
		}
		all[i].Topic = s.Topic
	}
	if len(all) == 0 {
		return nil, errNoSources
	}
	return all, nil
}

// reach makes what an engine binds what can be dialled: on all interfaces is on its host. An address of
// another host is refused: an engine has no say in what the gateway connects to.
func reach(bound, host string) (string, error) {
	address, ok := strings.CutPrefix(bound, "tcp://")
	if !ok {
		return "", fmt.Errorf("it publishes KV events at %.100q, which cannot be reached: use tcp://*:PORT", bound)
	}
	name, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("it publishes KV events at %.100q, which is no address", bound)
	}
	switch ip := net.ParseIP(name); {
	case name == "*", name == "", ip != nil && ip.IsUnspecified():
	case name == host, ip != nil && ip.IsLoopback() && isLoopback(host):
		host = name
	default:
		return "", fmt.Errorf("it publishes KV events at %.100q, which is not its host %s: say where in the endpoint's kv_events if that is right", bound, host)
	}
	return "tcp://" + net.JoinHostPort(host, port), nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
