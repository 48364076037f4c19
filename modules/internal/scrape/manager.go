// Package scrape asks engines how they are: it turns their metrics pages into
// fleet.Stats, learns what models they serve, and probes those that are down.
package scrape

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/llmgw/llmgw/modules/internal/fleet"
	"github.com/llmgw/llmgw/modules/schedule"
)

// Target is a replica to ask, and how.
type Target struct {
	// Replica gets the answers.
	Replica *fleet.Replica
	// Engine, Metrics and Models are what [Parse] takes.
	Engine  string
	Metrics map[string]string
	Models  []string
	// APIKey is sent as a bearer token; "" sends none.
	APIKey string
	// Client must come from [NewClient].
	Client *http.Client
	// Interval is the time between scrapes, jittered by a tenth; above 0.
	Interval time.Duration
}

// timeout bounds one scrape, list of models or probe in all. One that is noticed
// so much later says that this process does not get to run, and nothing of the
// replica.
const (
	timeout = 2 * time.Second
	late    = 200 * time.Millisecond
)

// Models are asked for when a replica comes up, and now and then, since
// adapters can be loaded at run time; after a failure sooner.
const (
	relearnInterval = 30 * time.Second
	relearnPause    = 5 * time.Second
)

// Manager runs one loop per replica for as long as any attached config names
// it. Safe for concurrent use.
type Manager struct {
	// Scraped is called after each scrape of a replica, also one that failed: reset says
	// that its engine has lost what it knew since the one before. Nil means nobody cares.
	// It must be set before targets are attached.
	Scraped func(r *fleet.Replica, reset bool)

	log func() *slog.Logger
	now func() time.Time

	loops *fleet.Loops[Target]

	mu       sync.Mutex
	onModels []*func() // of what is attached
}

// New returns a manager without targets. log is called for each message. now is
// the clock; nil means time.Now.
func New(log func() *slog.Logger, now func() time.Time) *Manager {
	if now == nil {
		now = time.Now
	}
	m := &Manager{log: log, now: now}
	m.loops = fleet.NewLoops(func(t *Target) *fleet.Replica { return t.Replica }, m.run)
	return m
}

// Attach starts asking the targets, see [fleet.Loops.Attach]. onModels is called when the models
// that a replica serves have changed: from any goroutine, and still for a
// change that was on its way when detach was called.
func (m *Manager) Attach(targets []Target, onModels func()) (detach func()) {
	m.mu.Lock()
	m.onModels = append(m.onModels, &onModels)
	m.mu.Unlock()
	stop := m.loops.Attach(targets)
	return func() {
		m.mu.Lock()
		m.onModels = slices.DeleteFunc(m.onModels, func(f *func()) bool { return f == &onModels })
		m.mu.Unlock()
		stop()
	}
}

// Wait blocks until no loop runs any more. Call it after the last detach.
func (m *Manager) Wait() { m.loops.Wait() }

func (m *Manager) modelsChanged() {
	m.mu.Lock()
	all := slices.Clone(m.onModels)
	m.mu.Unlock()
	for _, f := range all {
		(*f)()
	}
}

// run is the loop of one replica.
func (m *Manager) run(ctx context.Context, target *atomic.Pointer[Target]) {
	w := &watcher{manager: m, id: target.Load().Replica.ID}
	wait := time.NewTimer(0)
	defer wait.Stop()
	for {
		t := target.Load()
		select {
		case <-ctx.Done():
			return
		case <-t.Replica.Health.Tripped():
		case <-wait.C:
		}
		wait.Reset(w.once(ctx, target.Load()))
	}
}

// watcher is what one loop remembers between its rounds.
type watcher struct {
	manager *Manager
	id      string
	learn   time.Time // when to learn the models next
	down    bool      // and said so
	alone   time.Time // since when its breaker is open, as last said
	blind   string    // why the models could not be learned, as last said
	missing []string  // fields that were warned of
	failing bool
}

// once asks the replica once and returns the time until it should be again.
func (w *watcher) once(ctx context.Context, t *Target) time.Duration {
	r := t.Replica
	if r.Health.State() == schedule.Down {
		w.sayDown(r)
		w.learn = time.Time{}
		if !w.probe(ctx, t) {
			return fleet.ProbeInterval
		}
		w.down = false
		w.log().Info("replica is back")
		r.Restarted()
	}
	w.sayAlone(r)
	if !w.manager.now().Before(w.learn) {
		w.models(ctx, t)
	}
	w.scrape(ctx, t)
	if r.Health.State() == schedule.Down {
		w.sayDown(r)
		return fleet.ProbeInterval
	}
	// Jitter keeps the scrapes of a fleet from aligning.
	return time.Duration(float64(t.Interval) * (0.9 + 0.2*rand.Float64()))
}

// log returns the logger as it is now: it changes with the config.
func (w *watcher) log() *slog.Logger { return w.manager.log().With("replica", w.id) }

// probe asks a replica that is down whether it is there, and returns whether
// that brought it back.
func (w *watcher) probe(ctx context.Context, t *Target) bool {
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	reason := t.probe(bounded)
	if reason == "" {
		// What took it out may have been its metrics page.
		if _, err := t.metrics(bounded); err != nil && !errors.Is(err, errNoMetrics) {
			reason = "scrape: " + err.Error()
		}
	}
	// A loop that ends has learned nothing of the replica.
	return ctx.Err() == nil && t.Replica.Health.Probed(reason)
}

// sayDown logs once that the replica is out, whoever found out.
func (w *watcher) sayDown(r *fleet.Replica) {
	if reason, _ := r.Health.Reason(); !w.down {
		w.down = true
		w.log().Warn("replica is down", "reason", reason)
	}
}

// sayAlone logs once that the replica's breaker has opened, and once that it has
// closed.
func (w *watcher) sayAlone(r *fleet.Replica) {
	reason, since := r.Breaker.Reason()
	if since.Equal(w.alone) {
		return
	}
	if w.alone = since; since.IsZero() {
		w.log().Info("replica answers well again")
	} else {
		w.log().Warn("replica is let alone for a while", "reason", reason)
	}
}

func (w *watcher) models(ctx context.Context, t *Target) {
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	version := t.Replica.Listing()
	names, adapters, err := t.models(bounded)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		w.learn = w.manager.now().Add(relearnPause)
		if w.blind != err.Error() {
			w.blind = err.Error()
			w.log().Warn("cannot learn the replica's models", "error", err)
		}
		return
	}
	w.blind = ""
	w.learn = w.manager.now().Add(relearnInterval)
	if !t.Replica.SetAdapters(version, adapters) {
		w.learn = w.manager.now().Add(relearnPause)
	}
	if t.Replica.SetModels(names) {
		w.manager.modelsChanged()
	}
}

func (m *Manager) scraped(r *fleet.Replica, reset bool) {
	if m.Scraped != nil {
		m.Scraped(r, reset)
	}
}

func (w *watcher) scrape(ctx context.Context, t *Target) {
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	r, begun := t.Replica, w.manager.now()
	stats, err := t.metrics(bounded)
	if ctx.Err() != nil {
		return
	}
	switch {
	case errors.Is(err, errNoMetrics):
		stats = noMetrics(w.manager.now())
		switch {
		case r.Stats().NoMetrics:
		case errors.Is(err, errHidden):
			w.log().Warn("replica denies the gateway its metrics page: it is routed by own counts; does the endpoint need an api_key?")
		default:
			w.log().Info("replica has no metrics page: it is routed by own counts; lower bands leave room there only if the endpoint has a batch_capacity")
		}
	case err != nil:
		last := *r.Stats()
		last.Failed = err.Error()
		r.SetStats(&last)
		w.manager.scraped(r, false)
		if !w.failing {
			w.failing = true
			w.log().Warn("scrape failed", "error", err)
		}
		if bounded.Err() == nil || w.manager.now().Sub(begun) < timeout+late {
			r.Health.ScrapeFailed("scrape: " + err.Error())
		}
		return
	}
	stats.At = w.manager.now()
	epoch := r.Epoch()
	reset := r.SetStats(stats)
	if reset || r.Epoch() != epoch {
		w.learn = time.Time{} // another process may serve other adapters
	}
	w.manager.scraped(r, reset)
	r.Health.ScrapeOK()
	w.failing = false
	if len(stats.Missing) > 0 && !slices.Equal(stats.Missing, w.missing) {
		w.log().Warn("the replica's metrics page lacks fields: they are unknown, and it is not preferred",
			"fields", stats.Missing)
	}
	w.missing = stats.Missing
}
