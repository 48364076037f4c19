package admit

import (
	"fmt"
	"maps"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/internal/fleet"
)

// TestExplainNamesTheFallback that serves a request for which there is no replica.
func TestExplainNamesTheFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, other := newSite(1, 1, time.Second), newSite(1, 1, time.Second)
		other.model.Name = "other"
		counted := 0
		s.gate.Refused = func(string, string, Reason) { counted++ }
		r := s.request("silver", "a")
		r.Fallbacks = []*catalog.Model{other.model}
		ask := func(want Verdict) {
			t.Helper()
			if v := s.gate.Explain(r); v.Refused != want.Refused || v.Fallback != want.Fallback || v.Waits != want.Waits {
				t.Errorf("%+v, want %+v", v, want)
			}
		}
		ask(Verdict{})
		s.engines[0].replica.SetDraining(true)
		ask(Verdict{Refused: ReasonNoReplica, Fallback: "other", Waits: WaitReplica})
		if _, err := s.gate.Acquire(t.Context(), r); err == nil || counted != 0 {
			t.Errorf("%v, counted %d times", err, counted)
		}
		s.model.Admission.ReplicaWait = time.Second
		ask(Verdict{Fallback: "other", Waits: WaitReplica})
		other.engines[0].replica.SetDraining(true)
		ask(Verdict{Waits: WaitReplica})
	})
}

// reloads are what a new config may change for a model in use.
var reloads = map[string]func(t *testing.T, s *site){
	"nothing": func(t *testing.T, s *site) { s.configure(t, s.gate.bands) },
	"another band": func(t *testing.T, s *site) {
		night := NewBand(fmt.Sprint("night", len(s.gate.bands)))
		night.Priority, night.Ceiling = 10-len(s.gate.bands), 0.01
		s.configure(t, append(append([]Band(nil), s.gate.bands...), night))
	},
	"a replica more": func(t *testing.T, s *site) {
		r, release := fleet.New(nil).Hold(&url.URL{Scheme: "http", Host: "new:8000"})
		t.Cleanup(release)
		r.SetDraining(true) // it takes nothing: only the set is another
		m := *s.model
		m.Endpoints = append(m.Endpoints[:len(m.Endpoints):len(m.Endpoints)], &catalog.Endpoint{Replica: r, Weight: 1, Slots: 1})
		s.model = &m
		s.configure(t, s.gate.bands)
	},
}

// TestHeadroomAfterReload: what higher bands need at once is still left free for them, and
// no more than that: what was learnt with the replicas before does not count beside it.
func TestHeadroomAfterReload(t *testing.T) {
	all := maps.Clone(reloads)
	all["other replicas"] = func(t *testing.T, s *site) {
		other := newSite(1, 16, time.Second)
		other.model.Endpoints[0].Slots = 16
		s.model = other.model
		s.configure(t, s.gate.bands)
	}
	for name, reload := range all {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := strict(t, 1, 16)
				burst := s.burst(t, s.model, "platinum", 3)
				reload(t, s)
				for _, l := range burst { // those of before end with what counted them
					l.Release(1)
				}
				if v := s.gate.Explain(s.request("bronze", "b")); v.Headroom != 3 || v.Free != 16 {
					t.Errorf("%v of %v free slots are left for three at once", v.Headroom, v.Free)
				}
				var low []*asked
				for range 16 {
					low = append(low, s.start(t.Context(), s.request("bronze", "b")))
				}
				time.Sleep(10 * time.Second) // they are paced
				went := 0
				for _, a := range low {
					if a.went() {
						went++
					} else {
						a.cancel()
						synctest.Wait()
					}
				}
				if went != 13 {
					t.Errorf("%d of bronze go, want 13", went)
				}
				for _, a := range low {
					a.lease.Release(1)
				}
				s.atRest(t)
			})
		})
	}
}

// TestWaitAfterReload: for how long a request will wait is as well known as before, unless
// the replicas are others, and tenants keep their place among each other.
func TestWaitAfterReload(t *testing.T) {
	for name, reload := range reloads {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, lease := patient(t, func(*Band) {})
				var all []*asked
				for range 12 {
					all = append(all, s.wait(t, "silver", "a"))
				}
				for range 6 {
					time.Sleep(time.Second)
					lease.Release(50)
					if !all[0].went() {
						t.Fatal("it is its turn")
					}
					lease, all = all[0].lease, all[1:]
				}
				before := s.gate.Explain(s.request("silver", "a"))
				if !before.EstimateKnown {
					t.Fatalf("before: %+v", before)
				}
				reload(t, s)
				after := s.gate.Explain(s.request("silver", "a"))
				if other := name == "a replica more"; other == after.EstimateKnown || !other && after.Estimate != before.Estimate {
					t.Errorf("it would wait for %v, and for %v before the reload", after.Estimate, before.Estimate)
				}
				// The other has had nothing yet: it is the next, and then they take turns.
				all = append(all, s.wait(t, "silver", "b"), s.wait(t, "silver", "b"))
				reload(t, s)
				if went := order(t, lease, all); went[0] != 0 && went[0] != 6 || went[1] != 6 && went[0] != 6 {
					t.Errorf("they went in the order %v", went)
				}
				s.atRest(t)
			})
		})
	}
}

// TestPlaceAfterReloads: who has had more than others does not become the next by a reload.
func TestPlaceAfterReloads(t *testing.T) {
	for name, reload := range reloads {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, lease := patient(t, func(*Band) {})
				long := s.request("silver", "a")
				long.Prompt = 10_000
				var all []*asked
				for _, r := range []*Request{long, s.request("silver", "a")} {
					a := s.start(t.Context(), r)
					a.went()
					all = append(all, a)
				}
				for range 6 {
					all = append(all, s.wait(t, "silver", "b"))
				}
				lease.Release(1)
				if !all[0].went() {
					t.Fatal("the first is the first")
				}
				lease = all[0].lease
				all = all[1:]
				for i := range 3 { // those of b, each after a reload
					reload(t, s)
					lease.Release(1)
					if !all[1].went() {
						t.Fatalf("after %d reloads a goes before b", i+1)
					}
					lease = all[1].lease
					all = append(all[:1], all[2:]...)
				}
				order(t, lease, all)
				s.atRest(t)
			})
		})
	}
}

// TestTurnsAfterReload: a band that was to get its turn soon still does.
func TestTurnsAfterReload(t *testing.T) {
	noTick(t)
	for name, reload := range reloads {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, lease := patient(t, func(*Band) {})
				low := s.wait(t, "bronze", "a")
				time.Sleep(time.Minute)
				const last = agingShare - 1 // the first of silver went before it, too
				for i := range last + 1 {
					if i == last/2 {
						reload(t, s)
					}
					high := s.start(t.Context(), s.request("gold", "b"))
					if high.went() {
						t.Fatal("there is no slot")
					}
					lease.Release(1)
					if low.went() != (i == last) || high.went() == low.went() {
						t.Fatalf("after %d of gold: bronze goes: %v, the next of gold: %v", i, low.went(), high.went())
					}
					if lease = high.lease; i == last {
						order(t, low.lease, []*asked{high})
					}
				}
				s.atRest(t)
			})
		})
	}
}
