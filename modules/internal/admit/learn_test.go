package admit

import (
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/internal/fleet"
)

// reloads are what a new config may change for a model in use.
var reloads = map[string]func(t *testing.T, s *site){
	"nothing": func(t *testing.T, s *site) { s.configure(t, s.gate.bands) },
	"another band": func(t *testing.T, s *site) {
		s.configure(t, append(append([]Band(nil), s.gate.bands...), Band{Name: "night", Priority: 1, Ceiling: 0.01, Queue: 10}))
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
	for name, reload := range reloads {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := strict(t, 1, 16)
				var burst []*Lease
				for range 3 {
					lease, err := s.gate.Acquire(t.Context(), s.request("platinum", "a"))
					if err != nil {
						t.Fatal(err)
					}
					burst = append(burst, lease)
				}
				reload(t, s)
				for _, l := range burst { // those of before end with what counted them
					l.Release(1)
				}
				if v := s.gate.Explain(s.request("bronze", "b")); v.Headroom != 3 || v.Free != 16 {
					t.Errorf("%v of %v free slots are left for three at once", v.Headroom, v.Free)
				}
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
