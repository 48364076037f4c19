package fleet

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/llmgw/llmgw/modules/schedule"
)

// After an adapter could not be loaded the replica gets no request for it for a pause, which doubles
// each time.
const (
	loadPause    = time.Second
	maxLoadPause = time.Minute
)

// load is a try to load an adapter, under way until done is closed.
type load struct {
	done  chan struct{}
	err   error
	since time.Time // when it began, or ended
	pause time.Duration
}

// under reports whether the load is under way.
func (l *load) under() bool {
	select {
	case <-l.done:
		return false
	default:
		return true
	}
}

// AdapterState says how far a replica is with a LoRA adapter.
type AdapterState string

// The states of an adapter.
const (
	// AdapterReady is one that the engine lists.
	AdapterReady AdapterState = "ready"
	// AdapterLoading is one that it was asked to load.
	AdapterLoading AdapterState = "loading"
	// AdapterUnknown is one that it listed before it went down.
	AdapterUnknown AdapterState = "unknown"
	// AdapterFailed is one that it could not load.
	AdapterFailed AdapterState = "failed"
)

// AdapterStatus is what is known of one adapter on a replica.
type AdapterStatus struct {
	Name  string
	State AdapterState
	// Reason says why it failed, Since when that was, or when loading began.
	Reason string
	Since  time.Time
}

// HasAdapter reports whether the engine lists the adapter.
func (r *Replica) HasAdapter(name string) bool { return slices.Contains(r.Adapters(), name) }

// MayLoad reports whether the replica is fit to load the adapter: it was not found unable to a moment
// ago.
func (r *Replica) MayLoad(name string) bool {
	r.loras.mu.Lock()
	defer r.loras.mu.Unlock()
	l := r.loras.loads[name]
	return l == nil || l.under() || r.now().Sub(l.since) >= l.pause
}

// LoadAdapter has the replica load an adapter, unless it lists it. The first caller's do asks the engine
// and returns the adapters that it lists after that; who comes meanwhile waits for it, too. do
// runs to its end even if ctx, which bounds only the wait, ends. It returns an error if
// the engine does not list the adapter then.
func (r *Replica) LoadAdapter(ctx context.Context, name string, do func() (listed []string, err error)) error {
	l, mine := r.beginLoad(name)
	switch {
	case l == nil:
		return nil
	case mine:
		go func() {
			listed, err := do()
			r.endLoad(name, l, listed, err)
		}()
	}
	select {
	case <-l.done:
		return l.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// beginLoad returns the load to wait for, nil if there is no need for one, and whether it is the
// caller's to carry out.
func (r *Replica) beginLoad(name string) (l *load, mine bool) {
	r.loras.mu.Lock()
	defer r.loras.mu.Unlock()
	if r.HasAdapter(name) {
		return nil, false
	}
	last := r.loras.loads[name]
	if last != nil && last.under() {
		return last, false
	}
	l = &load{done: make(chan struct{}), since: r.now(), pause: loadPause}
	if last != nil {
		l.pause = min(2*last.pause, maxLoadPause)
	}
	if r.loras.loads == nil {
		r.loras.loads = make(map[string]*load)
	}
	r.loras.loads[name] = l
	return l, true
}

// endLoad keeps what came of a load, unless the process that was asked is gone.
func (r *Replica) endLoad(name string, l *load, listed []string, err error) {
	r.loras.mu.Lock()
	defer r.loras.mu.Unlock()
	if err == nil && !slices.Contains(listed, name) {
		err = fmt.Errorf("the engine says that it has loaded the adapter %q, and does not list it", name)
	}
	l.err, l.since = err, r.now()
	if r.loras.loads[name] == l {
		if err == nil {
			delete(r.loras.loads, name)
			r.SetAdapters(listed)
		}
	} else if err == nil {
		l.err = fmt.Errorf("the engine restarted while it loaded the adapter %q", name)
	}
	close(l.done)
}

// LostAdapter notes that the engine does not know an adapter that it has listed.
func (r *Replica) LostAdapter(name string) {
	r.loras.mu.Lock()
	defer r.loras.mu.Unlock()
	r.SetAdapters(slices.DeleteFunc(slices.Clone(r.Adapters()), func(a string) bool { return a == name }))
}

// AdapterStatuses returns what is known of adapters, sorted by name.
func (r *Replica) AdapterStatuses() (all []AdapterStatus) {
	r.loras.mu.Lock()
	defer r.loras.mu.Unlock()
	listed, state := r.Adapters(), AdapterReady
	if r.Health.State() == schedule.Down {
		state = AdapterUnknown
	}
	for _, name := range listed {
		all = append(all, AdapterStatus{Name: name, State: state})
	}
	for name, l := range r.loras.loads {
		switch {
		case slices.Contains(listed, name): // by now, whoever brought it there
		case l.under():
			all = append(all, AdapterStatus{Name: name, State: AdapterLoading, Since: l.since})
		default:
			all = append(all, AdapterStatus{Name: name, State: AdapterFailed, Reason: l.err.Error(), Since: l.since})
		}
	}
	slices.SortFunc(all, func(a, b AdapterStatus) int { return strings.Compare(a.Name, b.Name) })
	return all
}
