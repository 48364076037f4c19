package fleet

import (
	"context"
	"errors"
	"maps"
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

// Adapter names a LoRA adapter.
type Adapter struct {
	// Name is what the engine lists it by, Path where the engine has it from, "" if it does not say.
	Name, Path string
	// Served is what the engine that lists it is asked for, "" if that is its name.
	Served string
}

// Is reports whether what an engine lists is the adapter a.
func (a Adapter) Is(listed Adapter) bool {
	return a.Name == listed.Name && (a.Path == listed.Path || listed.Path == "")
}

// adapterLoad is a try to load an adapter, under way until done is closed.
type adapterLoad struct {
	path  string
	ctx   context.Context // of the load, not of who waits for it
	stop  context.CancelFunc
	done  chan struct{}
	err   error
	since time.Time // when it began, or ended
	pause time.Duration
}

// under reports whether the load is under way.
func (l *adapterLoad) under() bool {
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
	// AdapterStale is one that it listed before it went down.
	AdapterStale AdapterState = "unknown"
	// AdapterFailed is one that it could not load.
	AdapterFailed AdapterState = "failed"
)

// AdapterStatus is what is known of one adapter on a replica.
type AdapterStatus struct {
	Adapter
	State AdapterState
	// Reason says why it failed, Since when that was, or when loading began.
	Reason string
	Since  time.Time
}

// SetAdapters stores the adapters that the engine lists, unless what is known of them has changed since
// Listing returned version: then the list may be older than that. It returns whether it has.
func (r *Replica) SetAdapters(version uint64, listed []Adapter) bool {
	r.loras.mu.Lock()
	defer r.loras.mu.Unlock()
	if version != r.loras.version {
		return false
	}
	r.adapters.Store(&listed)
	return true
}

// Listing returns the version of what is known of the adapters, for who asks the engine.
func (r *Replica) Listing() (version uint64) {
	r.loras.mu.Lock()
	defer r.loras.mu.Unlock()
	return r.loras.version
}

// relist changes the list for a reason that who asks the engine now may not know of. It needs mu.
func (r *Replica) relist(change func([]Adapter) []Adapter) {
	listed := change(slices.Clone(r.listed()))
	r.adapters.Store(&listed)
	r.loras.version++
}

func (r *Replica) listed() []Adapter {
	if a := r.adapters.Load(); a != nil {
		return *a
	}
	return nil
}

// Lists reports whether the engine lists an adapter of that name.
func (r *Replica) Lists(name string) bool {
	return slices.ContainsFunc(r.listed(), func(a Adapter) bool { return a.Name == name })
}

// Listed returns the adapter that the engine lists by that name, or serves if it is asked for that.
func (r *Replica) Listed(name string) (a Adapter, ok bool) {
	for _, a := range r.listed() {
		if a.Name == name || a.Served == name {
			return a, true
		}
	}
	return a, false
}

// HasAdapter reports whether the engine lists the adapter, from the path that it is to have it from.
func (r *Replica) HasAdapter(a Adapter) bool { return slices.ContainsFunc(r.listed(), a.Is) }

// MayLoad reports whether the replica is fit to load the adapter: it was not found unable to a moment
// ago.
func (r *Replica) MayLoad(a Adapter) bool {
	r.loras.mu.Lock()
	defer r.loras.mu.Unlock()
	l := r.loras.loads[a.Name]
	return l == nil || l.path != a.Path || l.under() || r.now().Sub(l.since) >= l.pause
}

// Loading reports whether the replica is loading the adapter now.
func (r *Replica) Loading(a Adapter) bool {
	r.loras.mu.Lock()
	defer r.loras.mu.Unlock()
	l := r.loras.loads[a.Name]
	return l != nil && l.path == a.Path && l.under()
}

var errRestarted = errors.New("the engine restarted meanwhile")

// LoadAdapter has the replica load an adapter, unless it lists it. The first caller's begin is called, and
// what it returns asks the engine, and returns nil if that lists the adapter then; who comes
// meanwhile waits for it, too. It runs to its end even if ctx, which bounds only the wait, ends; but who
// wants the same from another path, since config says so now, ends its own context.
func (r *Replica) LoadAdapter(ctx context.Context, a Adapter, begin func() (load func(context.Context) error)) error {
	for {
		l, mine := r.beginLoad(a)
		switch {
		case l == nil:
			return nil
		case mine:
			load := begin()
			go func() {
				defer l.stop()
				r.endLoad(a, l, load(l.ctx))
			}()
		}
		select {
		case <-l.done:
			if l.path == a.Path {
				return l.err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// beginLoad returns the load to wait for, nil if there is no need for one, and whether it is the
// caller's to carry out.
func (r *Replica) beginLoad(a Adapter) (l *adapterLoad, mine bool) {
	r.loras.mu.Lock()
	defer r.loras.mu.Unlock()
	if r.HasAdapter(a) {
		return nil, false
	}
	maps.DeleteFunc(r.loras.loads, func(_ string, l *adapterLoad) bool { return r.forgotten(l) })
	last := r.loras.loads[a.Name]
	switch {
	case last == nil:
	case last.under():
		if last.path != a.Path {
			last.stop()
		}
		return last, false
	case last.path != a.Path:
		last = nil
	case r.now().Sub(last.since) < last.pause:
		return last, false // picked before it was known that it fails
	}
	l = &adapterLoad{path: a.Path, done: make(chan struct{}), since: r.now(), pause: loadPause}
	l.ctx, l.stop = context.WithCancel(context.Background())
	if last != nil {
		l.pause = min(2*last.pause, maxLoadPause)
	}
	if r.loras.loads == nil {
		r.loras.loads = make(map[string]*adapterLoad)
	}
	r.loras.loads[a.Name] = l
	return l, true
}

// forgotten reports whether a load failed so long ago that it says nothing any more: config may not even
// have the adapter.
func (r *Replica) forgotten(l *adapterLoad) bool {
	return !l.under() && r.now().Sub(l.since) > 2*maxLoadPause
}

// endLoad keeps what came of a load, unless the process that was asked is gone, which has ended it. One of
// the same name from another path is gone in any case.
func (r *Replica) endLoad(a Adapter, l *adapterLoad, err error) {
	r.loras.mu.Lock()
	defer r.loras.mu.Unlock()
	if r.loras.loads[a.Name] != l {
		return
	}
	l.err, l.since = err, r.now()
	if r.Lists(a.Name) && !r.HasAdapter(a) && !slices.Contains(r.loras.replaced, a.Name) {
		r.loras.replaced = append(r.loras.replaced, a.Name)
	}
	r.relist(func(all []Adapter) []Adapter {
		all = without(all, a.Name)
		if err == nil {
			all = append(all, a)
		}
		return all
	})
	if err == nil {
		delete(r.loras.loads, a.Name)
		if r.loras.loaded == nil {
			r.loras.loaded = make(map[string]uint64)
		}
		r.loras.loaded[a.Name] = r.loras.version
	} else {
		r.loras.unuse(a.Name)
	}
	close(l.done)
}

func without(all []Adapter, name string) []Adapter {
	return slices.DeleteFunc(all, func(a Adapter) bool { return a.Name == name })
}

// Replaced reports whether this process has had the adapter from another path before. What its KV cache
// has of that has the same name.
func (r *Replica) Replaced(name string) bool {
	r.loras.mu.Lock()
	defer r.loras.mu.Unlock()
	return slices.Contains(r.loras.replaced, name)
}

// LostAdapter notes that the engine, as it was listed at that version, does not know an adapter that it
// has listed, unless it was loaded since.
func (r *Replica) LostAdapter(version uint64, name string) {
	r.loras.mu.Lock()
	defer r.loras.mu.Unlock()
	if r.loras.loaded[name] > version {
		return
	}
	r.loras.unuse(name)
	r.relist(func(all []Adapter) []Adapter { return without(all, name) })
}

// AdapterStatuses returns what is known of adapters, sorted by name.
func (r *Replica) AdapterStatuses() (all []AdapterStatus) {
	r.loras.mu.Lock()
	defer r.loras.mu.Unlock()
	state := AdapterReady
	if r.Health.State() == schedule.Down {
		state = AdapterStale
	}
	for _, a := range r.listed() {
		all = append(all, AdapterStatus{Adapter: a, State: state})
	}
	for name, l := range r.loras.loads {
		a := Adapter{Name: name, Path: l.path}
		switch {
		case r.forgotten(l):
		case r.HasAdapter(a): // by now, whoever brought it there
		case l.under():
			all = append(all, AdapterStatus{Adapter: a, State: AdapterLoading, Since: l.since})
		default:
			all = append(all, AdapterStatus{Adapter: a, State: AdapterFailed, Reason: l.err.Error(), Since: l.since})
		}
	}
	slices.SortFunc(all, func(a, b AdapterStatus) int {
		return strings.Compare(a.Name+"\x00"+a.Path, b.Name+"\x00"+b.Path)
	})
	return all
}
