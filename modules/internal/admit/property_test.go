package admit

import (
	"errors"
	"flag"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/internal/fleet"
)

// TestGateProperties drives a gate by hand, in a bubble: arrivals for models that share
// replicas, clients that leave, requests that are placed and that end, time that passes,
// other bands and other replicas. At each step no slot is granted twice, nobody who
// comes overtakes a higher band, but for those that let others pass, nothing waits that may
// go, what was said of a request is what becomes of it, and all counts agree.
func TestGateProperties(t *testing.T) {
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue { // they are quick
		_ = f.Value.Set("3000")
		defer func() { _ = f.Value.Set(f.DefValue) }()
	}
	// rapid asks for a deadline if there is one to be had, which bubbles have not.
	synctest.Test(t, func(t *testing.T) { rapid.Check(struct{ rapid.TB }{t}, gateProperties) })
}

func gateProperties(t *rapid.T) {
	s := newSite(rapid.IntRange(1, 3).Draw(t, "engines"), 8, time.Second)
	slots := rapid.IntRange(1, 4).Draw(t, "slots")
	for _, e := range s.model.Endpoints {
		e.Slots = slots
	}
	s.model.Admission.MaxQueued = 20
	// One that has waited for long for many slots goes when half of them are free.
	widest := rapid.SampledFrom([]int{1, slots}).Draw(t, "widest")
	scrape := func() {}
	if rapid.Bool().Draw(t, "caches") {
		scrape = func() {
			for _, e := range s.engines {
				e.replica.SetStats(&fleet.Stats{At: time.Now(), Waiting: 0, Running: 0, KVUsage: 0, BlockSize: 16, Blocks: 100})
			}
		}
	}
	scrape()
	g := s.gate
	models := map[string]*catalog.Model{"m": s.model}
	for name, endpoints := range map[string][]*catalog.Endpoint{
		"first": s.model.Endpoints[:1], "others": s.model.Endpoints[len(s.model.Endpoints)/2:],
	} {
		m := *s.model
		m.Name, m.Endpoints = name, endpoints
		models[name] = &m
	}
	bands := Bands()
	for i := range bands {
		bands[i].Ceiling, bands[i].Queue, bands[i].Aging = 0.01, 8, 5*time.Second
	}
	configure := func(bands []Band) {
		sorted, err := CheckBands(bands)
		if err != nil {
			t.Fatal(err)
		}
		g.Configure(sorted, func(name string) *catalog.Model { return models[name] })
	}
	configure(bands)
	var waiting []*waiter
	type run struct {
		lease *Lease
		slot  fleet.Slot
	}
	var running []*run
	settle := func() { // what was let through runs, what was refused is gone
		kept := waiting[:0]
		for _, w := range waiting {
			switch {
			case w.lease != nil:
				running = append(running, &run{lease: w.lease})
			case w.err == nil:
				kept = append(kept, w)
			}
		}
		waiting = kept
	}
	idle := func() *waiter { // who waits and may go
		g.lock()
		defer g.unlock()
		for _, o := range g.sets {
			for band := range g.bands {
				all := o.lanes[band].passed()
				if head := o.lanes[band].head(); head != nil {
					all = append(all, head)
				}
				for _, w := range all {
					if _, why, _ := o.mayGo(&g.bands[band], band, w, time.Now()); why == "" {
						return w
					}
				}
				if o.lanes[band].n > 0 { // lower bands wait for its head
					break
				}
			}
		}
		return nil
	}
	t.Repeat(map[string]func(*rapid.T){
		"arrive": func(t *rapid.T) {
			band := rapid.SampledFrom([]string{"platinum", "gold", "silver", "bronze"}).Draw(t, "band")
			tenant := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "tenant")
			r := s.request(band, tenant)
			r.Prompt = rapid.Int64Range(1, 1000).Draw(t, "prompt")
			r.Model = models[rapid.SampledFrom([]string{"m", "first", "others"}).Draw(t, "model")]
			r.Sequences = int64(rapid.IntRange(1, widest).Draw(t, "sequences"))
			r.Alone = r.Sequences > 1 && rapid.IntRange(0, 3).Draw(t, "alone") == 0
			g.Explain(r) // a model with other replicas may let go others, the first time
			said := g.Explain(r)
			settle()
			var w *waiter
			var err error
			lease := g.pass(r, time.Now())
			if lease != nil && slices.ContainsFunc(waiting, func(w *waiter) bool { return w.model == r.Model && w.band <= lease.band }) {
				t.Fatal("one goes before others of its band or of a higher one")
			}
			if lease == nil {
				stands := slices.ContainsFunc(waiting, func(w *waiter) bool { return w.model == r.Model && w.band < g.band(r.Band) && w.lane.of == nil })
				g.lock()
				lease, w, err = g.enter(r, time.Now())
				g.unlock()
				if lease != nil && stands {
					t.Fatal("one that comes goes before another of a higher band")
				}
			}
			refused, _ := errors.AsType[*RejectedError](err)
			switch {
			case lease != nil && (said.Refused != "" || said.Waits != ""),
				w != nil && (said.Refused != "" || said.Waits == ""),
				refused != nil && refused.Reason != said.Refused:
				t.Fatalf("said was %+v: lease %v, waits %v, refused %v", said, lease != nil, w != nil, err)
			}
			if lease != nil {
				running = append(running, &run{lease: lease})
			}
			if w != nil {
				waiting = append(waiting, w)
			}
			settle()
		},
		"leave": func(t *rapid.T) {
			if len(waiting) == 0 {
				t.Skip("nobody waits")
			}
			w := rapid.SampledFrom(waiting).Draw(t, "who")
			g.leave(w, rapid.SampledFrom([]Reason{ReasonGone, ReasonTTL}).Draw(t, "why"))
			settle()
		},
		"end": func(t *rapid.T) {
			if len(running) == 0 {
				t.Skip("nothing runs")
			}
			i := rapid.IntRange(0, len(running)-1).Draw(t, "which")
			running[i].slot.Release()
			running[i].lease.Release(int64(i))
			running[i].lease.Release(int64(i))
			running = append(running[:i], running[i+1:]...)
			settle()
		},
		"place": func(t *rapid.T) {
			i := slices.IndexFunc(running, func(r *run) bool { return !r.slot.Held() })
			if i < 0 {
				t.Skip("all are placed")
			}
			r := running[i]
			replica, sequences := r.lease.Reserved()
			r.slot, _ = replica.Take(-1, 10)
			r.slot.Sequences(sequences)
			r.lease.Placed()
			settle()
		},
		"time": func(t *rapid.T) {
			scrape()
			time.Sleep(tick + time.Duration(rapid.IntRange(1, 8000).Draw(t, "ms"))*time.Millisecond)
			synctest.Wait() // the gate's timer may be due as well
			var last *waiter
			for w := idle(); w != nil && w != last; w = idle() { // since its last tick
				last = w
				time.Sleep(tick)
				synctest.Wait()
			}
			settle()
		},
		"configure": func(t *rapid.T) {
			bands[0].Queue = rapid.IntRange(0, 8).Draw(t, "queue")
			bands[len(bands)-1].Priority = rapid.SampledFrom([]int{100, 350, 1000}).Draw(t, "priority of bronze")
			others := *models["others"]
			others.Endpoints = s.model.Endpoints[rapid.IntRange(0, len(s.engines)-1).Draw(t, "others begin"):]
			models["others"] = &others
			configure(bands[rapid.IntRange(0, 1).Draw(t, "first band"):])
			settle()
		},
		"": func(t *rapid.T) {
			if w := idle(); w != nil {
				t.Fatalf("one of %s waits that may go", w.name)
			}
			g.lock()
			defer g.unlock()
			total, all := int64(0), int64(0)
			for _, e := range s.engines {
				n := int64(e.replica.Load(time.Now(), slots).Total)
				if n > int64(slots+widest/2) {
					t.Fatalf("%d run on a replica of %d slots", n, slots)
				}
				total += n
			}
			for _, r := range running {
				all += r.lease.Takes()
			}
			if total != all {
				t.Fatalf("%d run, the replicas count %d", all, total)
			}
			n := 0
			for _, o := range g.sets {
				n += o.waiting
			}
			if n != len(waiting) {
				t.Fatalf("%d wait, the gate has %d", len(waiting), n)
			}
		},
	})
	for _, w := range waiting {
		g.leave(w, ReasonGone)
	}
	settle()
	for _, r := range running {
		r.slot.Release()
		r.lease.Release(0)
	}
	s.atRest(t)
}
