package fleet

import (
	"slices"
	"sync"

	"github.com/llmgw/llmgw/modules/schedule"
)

// loras are the adapters that the gateway has sent requests for of late, the latest last: an engine
// keeps those that it used last, and says only which ones it uses now.
type loras struct {
	mu   sync.Mutex
	used []string

	version  uint64                  // of what is known of the adapters that the engine lists
	loads    map[string]*adapterLoad // by name, those under way and those that failed
	loaded   map[string]uint64       // by name, the version since which it is listed
	replaced []string                // those that were loaded from another path before
}

func (l *loras) use(name string, keep int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.used, name); i >= 0 {
		l.used = slices.Delete(l.used, i, i+1)
	}
	l.used = append(l.used, name)
	if over := len(l.used) - keep; over > 0 {
		l.used = slices.Delete(l.used, 0, over)
	}
}

// reset forgets the process. It needs mu.
func (l *loras) reset() {
	for _, load := range l.loads {
		if load.under() {
			load.err = errRestarted
			close(load.done)
		}
	}
	l.used, l.loads, l.loaded, l.replaced = nil, nil, nil, nil
	l.version++
}

// unuse notes that the engine does not have an adapter after all. It needs mu.
func (l *loras) unuse(name string) {
	l.used = slices.DeleteFunc(l.used, func(o string) bool { return o == name })
}

// UseLoRA notes that a request for an adapter goes to the replica.
func (r *Replica) UseLoRA(name string) {
	if n := r.Stats().MaxLoRAs; n > 0 {
		r.loras.use(name, n)
	}
}

// LoRA says how the replica stands to an adapter that it lists.
func (r *Replica) LoRA(name string) schedule.Adapter {
	s := r.Stats()
	if s.MaxLoRAs == 0 {
		return schedule.AdapterUnknown
	}
	r.loras.mu.Lock()
	defer r.loras.mu.Unlock()
	if slices.Contains(s.LoRAs, name) || slices.Contains(r.loras.used, name) {
		return schedule.AdapterLoaded
	}
	busy := len(s.LoRAs) // those in use must stay
	for _, other := range r.loras.used {
		if !slices.Contains(s.LoRAs, other) {
			busy++
		}
	}
	if busy < s.MaxLoRAs {
		return schedule.AdapterRoom
	}
	return schedule.AdapterNoRoom
}
