package admit

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/internal/fleet"
)

// Configure makes these bands, which [CheckBands] has returned, and the models
// that resolve knows the ones that count from now on, for what waits already as
// well: a request keeps its place under the name of its band and of its model. One
// whose model is gone goes to the replicas that it had, and one of a band that is
// gone is of the default band. What no longer fits into a queue is refused.
func (g *Gate) Configure(bands []Band, resolve func(name string) *catalog.Model) {
	g.lock()
	defer g.unlock()
	g.close(true)
	defer g.close(false)
	now := g.now()
	var waiting []*waiter
	for _, q := range g.models {
		for i := range q.bands {
			for k := q.bands[i].list.first; k != nil; k = k.next {
				waiting = append(waiting, k.w)
			}
		}
	}
	slices.SortFunc(waiting, func(a, b *waiter) int { return cmp.Compare(a.seq, b.seq) })
	since, leads := make(map[*set]busyPeriod), make(map[*waiter]lead)
	for _, w := range waiting {
		since[w.set] = w.set.busy
		leads[w] = w.lead()
	}
	for _, w := range waiting {
		if w.hold != nil {
			g.unhold(w)
		}
		g.dequeue(w, false, now)
	}
	if !slices.EqualFunc(g.bands, bands, equal) {
		g.adopt(bands)
	}
	g.unknow() // they are of catalogs that are gone
	maps.DeleteFunc(g.latest, func(name string, _ *set) bool { return resolve(name) == nil })
	for _, w := range waiting {
		if m := resolve(w.model.Name); m != nil {
			w.model = m
		}
		w.band = g.band(w.name)
		w.set = g.set(w.model, now)
		if !g.makeRoom(w) {
			w.err = g.refuse(w, ReasonFull, 0)
			close(w.ready)
			continue
		}
		g.enqueue(w, leads[w].aside, now)
	}
	for _, w := range waiting {
		if w.err == nil {
			w.resume(leads[w]) // else its tenant would be the next at each reload
		}
	}
	for s, c := range since {
		if s.waiting > 0 {
			s.busy = c
		}
	}
	g.dispatch(now, slices.Clone(g.active))
}

// equal reports whether bands are the same.
func equal(a, b Band) bool {
	if a.EnginePriority != nil && b.EnginePriority != nil && *a.EnginePriority == *b.EnginePriority {
		a.EnginePriority = b.EnginePriority
	}
	return a == b
}

// close makes all take the lock, or no longer. It needs mu.
func (g *Gate) close(shut bool) {
	g.shut = shut
	for _, s := range g.sets {
		if f := s.front.Load(); shut {
			f.waits.Or(isShut)
		} else {
			f.waits.And(^uint64(isShut))
		}
	}
}

// adopt replaces the bands. It needs mu, and that nothing waits.
func (g *Gate) adopt(bands []Band) {
	old := g.bands
	g.bands = bands
	g.top = bands[0]
	g.top.Ceiling = min(g.top.Ceiling, 1) // even where its own never wait
	for _, s := range g.sets {
		demands, paced, ended := make([]demand, len(bands)), make([]time.Time, len(bands)), make([]drained, len(bands))
		turns := make([]int, len(bands))
		before, after := s.front.Load(), newFront(bands, g.shut)
		for i, b := range bands {
			j := slices.IndexFunc(old, func(o Band) bool { return o.Name == b.Name })
			if j < 0 {
				continue
			}
			paced[i], ended[i], turns[i] = s.paced[j], s.drained[j], s.turns[j]
			after.last[i].Store(before.last[j].Load())
			if slices.EqualFunc(bands[:i], old[:j], func(a, b Band) bool { return a.Name == b.Name }) {
				demands[i] = s.demand[j] // it is that of the same bands
			}
		}
		s.demand, s.paced, s.drained = demands, paced, ended
		s.empty(len(bands))
		s.turns = turns
		s.front.Store(after)
	}
}

// forgetAfter is how long a set without requests is remembered.
const forgetAfter = 5 * time.Minute

// maxKnown bounds the models whose sets are found without making a key; there are
// new ones with each config, and whenever an engine lists others.
const maxKnown = 4096

// set returns the set of a model's replicas. It needs mu.
func (g *Gate) set(m *catalog.Model, now time.Time) *set {
	if s, ok := g.quick.Load(m); ok {
		return s.(*set).use(now)
	}
	s := g.find(m, now)
	if g.known == maxKnown {
		g.unknow()
	}
	g.known++
	g.quick.Store(m, s)
	return s.use(now)
}

// unknow makes all sets be found by their keys. It needs mu.
func (g *Gate) unknow() {
	g.quick.Clear()
	g.known = 0
}

// use notes that the set is in use.
func (s *set) use(now time.Time) *set {
	if at := now.Unix(); s.used.Load() != at {
		s.used.Store(at)
	}
	return s
}

// find returns the set that has the model's key. It needs mu.
func (g *Gate) find(m *catalog.Model, now time.Time) *set {
	key := setKey(m)
	s := g.sets[key]
	if s == nil {
		g.forget(now)
		s = newSet(m, len(g.bands))
		s.front.Store(newFront(g.bands, g.shut))
		if o := g.latest[m.Name]; o != nil {
			others := false
			for name, used := range g.latest {
				others = others || used == o && name != m.Name
			}
			s.learn(o, others)
			g.note(&note{kind: noteFreed, set: o}) // it has less to leave free
		}
		g.meet(s)
		for _, h := range g.holds {
			if h.w != nil {
				s.keep(h)
			}
		}
		for _, n := range s.neighbours() {
			for band := range s.tags {
				s.tags[band].clock = max(s.tags[band].clock, n.set.tags[band].clock)
			}
		}
		g.sets[key] = s
	}
	g.latest[m.Name] = s
	return s
}

// forget drops the sets that nobody uses. It needs mu.
func (g *Gate) forget(now time.Time) {
	unused := make(map[*set]bool) // one may be used in this very moment, and is looked up again then
	maps.DeleteFunc(g.sets, func(_ string, s *set) bool {
		if s.waiting == 0 && s.leases == 0 && now.Sub(time.Unix(s.used.Load(), 0)) > forgetAfter {
			unused[s] = true
		}
		return unused[s]
	})
	if len(unused) == 0 {
		return
	}
	maps.DeleteFunc(g.latest, func(_ string, s *set) bool { return unused[s] })
	for _, s := range g.sets {
		near := slices.DeleteFunc(slices.Clone(s.neighbours()), func(n neighbour) bool { return unused[n.set] })
		s.near.Store(&near)
	}
	g.unknow()
}

// meet finds out which sets a new one has replicas in common with. It needs mu.
func (g *Gate) meet(s *set) {
	own := make(map[*fleet.Replica]bool, len(s.endpoints))
	for _, e := range s.endpoints {
		own[e.Replica] = true
	}
	add := func(s *set, n neighbour) {
		near := append(slices.Clip(s.neighbours()), n)
		s.near.Store(&near)
	}
	for _, o := range g.sets {
		var theirs []*catalog.Endpoint
		common := make(map[*fleet.Replica]bool)
		for _, e := range o.endpoints {
			if own[e.Replica] {
				theirs = append(theirs, e)
				common[e.Replica] = true
			}
		}
		if len(theirs) == 0 {
			continue
		}
		var mine []*catalog.Endpoint
		for _, e := range s.endpoints {
			if common[e.Replica] {
				mine = append(mine, e)
			}
		}
		add(s, neighbour{o, mine, float64(len(theirs)) / float64(len(o.endpoints)), len(mine) == len(s.endpoints)})
		add(o, neighbour{s, theirs, float64(len(mine)) / float64(len(s.endpoints)), len(theirs) == len(o.endpoints)})
	}
}
