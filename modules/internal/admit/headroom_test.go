package admit

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/llmgw/llmgw/modules/internal/fleet"
	"github.com/llmgw/llmgw/modules/schedule"
)

// TestDemand: how many slots are to be left free by what came of late.
func TestDemand(t *testing.T) {
	for name, tt := range map[string]struct {
		every       time.Duration // between arrivals
		together    int           // arrive at once
		rate        float64       // slots freed a second
		used        int64         // with each of them
		running     int64
		want, later int64
	}{
		"one at a time":                      {time.Second, 1, 10, 1, 0, 1, 0},
		"bursts":                             {5 * time.Second, 4, 10, 4, 0, 4, 0},
		"some of a burst run":                {5 * time.Second, 4, 10, 4, 3, 1, 0},
		"faster than slots are freed":        {100 * time.Millisecond, 1, 5, 20, 0, 20, 0},
		"short ones, which free their slots": {100 * time.Millisecond, 1, 1, 1, 0, 1, 0},
		"more than is told apart":            {100 * time.Millisecond, 200, 0, 200, 0, maxHeadroom, 0},
		"of which some run":                  {100 * time.Millisecond, 200, 0, 200, 50, maxHeadroom, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var d demand
			now := time.Now()
			for range 300 {
				now = now.Add(tt.every)
				for range tt.together {
					d.arrive(now, tt.rate, 1, tt.used, 100)
				}
			}
			if got := d.headroom(tt.running, now); got != tt.want {
				t.Errorf("%d, want %d", got, tt.want)
			}
			if got := d.headroom(tt.running, now.Add(decay+1)); got != tt.later {
				t.Errorf("%d after a pause, want %d", got, tt.later)
			}
		})
	}
}

// TestDemandForgets what was long ago, and what is rare.
func TestDemandForgets(t *testing.T) {
	var d demand
	now := time.Now()
	arrive := func(n int64) {
		for i := range n {
			d.arrive(now, 1, 1, i+1, 100)
		}
		now = now.Add(20 * time.Second)
	}
	for range 10 {
		arrive(5)
	}
	if got := d.headroom(0, now); got != 5 {
		t.Errorf("%d, want 5", got)
	}
	for range 3 { // a minute
		arrive(1)
	}
	if got := d.headroom(0, now); got != 1 {
		t.Errorf("%d after a minute of one at a time, want 1", got)
	}
	arrive(14) // once, however few come after it
	for seconds := range 60 {
		switch got := d.headroom(0, now); {
		case seconds < 10 && got != 14:
			t.Fatalf("%d within half a minute of a burst of 14", got)
		case seconds > 25 && got != 1:
			t.Fatalf("%d slots are left free %d s after the last burst", got, 20+seconds)
		}
		d.arrive(now, 1, 1, 1, 100)
		now = now.Add(time.Second)
	}
}

// TestHeadroomBesideOthers: of what others have of the replicas nothing is left free, so half
// of the rest goes.
func TestHeadroomBesideOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := strict(t, 2, 8)
		for _, l := range s.burst(t, s.model, "silver", 16) {
			l.Release(1)
		}
		scrape := func() { // others fill the first
			s.engines[0].replica.SetStats(&fleet.Stats{At: time.Now(), Waiting: 0, Running: 8, KVUsage: 0})
		}
		scrape()
		var low []*asked
		for range 8 {
			low = append(low, s.start(t.Context(), s.request("bronze", "b")))
		}
		for range 10 {
			time.Sleep(time.Second)
			scrape()
		}
		n := 0
		for _, a := range low {
			if a.went() {
				n++
				defer a.lease.Release(1)
			}
			defer a.cancel()
		}
		if n != 4 {
			t.Errorf("%d of bronze run beside 8 slots of others", n)
		}
	})
}

// TestHeadroomByMemory: where memory is what is short, as many requests end as it holds, and
// not as many as there are slots.
func TestHeadroomByMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := tokens(100)
		scrape := func() {
			s.engines[0].replica.SetStats(&fleet.Stats{At: time.Now(), Waiting: 0, Running: 1, KVUsage: 0.01, BlockSize: 10, Blocks: 1000})
		}
		for range 20 { // two of 1,000 tokens, one shortly after the other, for four seconds
			var all []*Lease
			for range 2 {
				lease, err := s.gate.Acquire(t.Context(), &Request{Model: s.model, Band: "platinum", Prompt: 1000, Holds: true})
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, lease)
				time.Sleep(100 * time.Millisecond)
			}
			time.Sleep(4 * time.Second)
			for _, l := range all {
				l.Release(1)
			}
			scrape()
		}
		if v := s.gate.Explain(&Request{Model: s.model, Band: "bronze"}); v.Headroom != 2 {
			t.Errorf("%v slots are left free, want 2", v.Headroom)
		}
	})
}

// TestPace: what is free beyond half of the slots goes at once; the rest by and by, as
// long as higher bands may come.
func TestPace(t *testing.T) {
	for _, higher := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s := strict(t, 1, 16)
			s.model.Admission.QueueTTL = time.Minute
			for range 4 { // requests of four seconds
				lease, err := s.gate.Acquire(t.Context(), s.request("silver", "a"))
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(4 * time.Second)
				lease.Release(1)
			}
			if higher {
				lease, err := s.gate.Acquire(t.Context(), s.request("platinum", "a"))
				if err != nil {
					t.Fatal(err)
				}
				lease.Release(-1)
			}
			var all []*asked
			begin := time.Now()
			for range 15 {
				all = append(all, s.start(t.Context(), s.request("silver", "a")))
			}
			count := func() (n int) {
				for _, a := range all {
					if a.went() {
						n++
					}
				}
				return n
			}
			if n := count(); higher && n != 10 || !higher && n != 15 { // with the first two of the second half
				t.Errorf("higher bands %v: %d of 15 go at once", higher, n)
			}
			if higher {
				if v := s.gate.Explain(s.request("gold", "a")); v.Waits != WaitPaced && v.Waits != "" {
					t.Errorf("%+v", v)
				}
			}
			for count() < 15 {
				time.Sleep(10 * time.Millisecond)
				if time.Since(begin) > 10*time.Second {
					t.Fatal("they do not go")
				}
			}
			// Sixteen requests end in four seconds: six more at twice that pace.
			if d := time.Since(begin); higher && (d < 500*time.Millisecond || d > time.Second) {
				t.Errorf("all went after %v", d)
			}
			for _, a := range all {
				a.lease.Release(1)
			}
			s.atRest(t)
		})
	}
}

// TestPaceIsForgotten: many short requests before do not slow down a burst into idle replicas.
func TestPaceIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := strict(t, 1, 64)
		for i := range 50 {
			lease, err := s.gate.Acquire(t.Context(), s.request([]string{"platinum", "silver"}[min(1, i%10)], "a"))
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond)
			lease.Release(1)
		}
		var all []*asked
		for range 50 {
			all = append(all, s.start(t.Context(), s.request("silver", "a")))
		}
		time.Sleep(tick)
		for i, a := range all {
			if !a.went() {
				t.Fatalf("%d waits with all slots free", i)
			}
			a.lease.Release(1)
		}
	})
}

// TestUnknownCapacity: how many requests a replica is trusted with while nobody has seen
// it full.
func TestUnknownCapacity(t *testing.T) {
	const many = 100
	for name, tt := range map[string]struct {
		band           string
		metrics        bool
		ran            int
		higher         bool
		want, headroom int
	}{
		"a normal band":                       {"silver", true, 0, false, many, 0},
		"beside higher ones":                  {"silver", true, 0, true, trusted, 1},
		"beside higher ones, without metrics": {"silver", false, 0, true, trusted, 1},
		"a low band":                          {"bronze", true, 0, false, trusted, 0},
		"it has run more":                     {"bronze", true, 20, false, 40, 0},
		"a low band, without metrics":         {"bronze", false, 0, false, many, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSite(1, 0, time.Second)
				bands := Bands()
				for i := range bands {
					bands[i].Ceiling = 0.01
				}
				s.configure(t, bands)
				if tt.metrics {
					r := s.engines[0].replica
					var slots []fleet.Slot
					for range tt.ran {
						slot, _ := r.Take(-1, 1)
						slots = append(slots, slot)
					}
					r.SetStats(&fleet.Stats{At: time.Now(), Waiting: 0, Running: schedule.Gauge(tt.ran), KVUsage: 0})
					for _, slot := range slots {
						slot.Release()
					}
					r.SetStats(&fleet.Stats{At: time.Now(), Waiting: 0, Running: 0, KVUsage: 0})
				}
				if tt.higher {
					lease, err := s.gate.Acquire(t.Context(), s.request("platinum", "a"))
					if err != nil {
						t.Fatal(err)
					}
					lease.Release(-1)
				}
				var all []*asked
				for range many {
					all = append(all, s.start(t.Context(), s.request(tt.band, "a")))
				}
				time.Sleep(3 * time.Second) // they may be paced
				n := 0
				for _, a := range all {
					if a.went() {
						n++
						defer a.lease.Release(1)
					}
					a.cancel()
				}
				if n != tt.want-tt.headroom {
					t.Errorf("%d go, want %d", n, tt.want-tt.headroom)
				}
			})
		})
	}
}

// TestUnknownCapacityInUse: a higher band that has all that it ever had is in use still.
func TestUnknownCapacityInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(1, 0, time.Second)
		bands := Bands()
		for i := range bands {
			bands[i].Ceiling = 0.01
		}
		s.configure(t, bands)
		high, err := s.gate.Acquire(t.Context(), s.request("platinum", "a"))
		if err != nil {
			t.Fatal(err)
		}
		var all []*asked
		for range 100 {
			all = append(all, s.start(t.Context(), s.request("bronze", "a")))
		}
		time.Sleep(3 * time.Second)
		n := 0
		for _, a := range all {
			if a.went() {
				n++
				defer a.lease.Release(1)
			}
			a.cancel()
		}
		if n != trusted-1 {
			t.Errorf("%d of bronze go beside one of platinum, want %d", n, trusted-1)
		}
		high.Release(1)
	})
}

// TestUnknownTokens: where nobody knows how many tokens a cache holds, low bands leave of
// it what their ceilings say, if higher ones are in use.
func TestUnknownTokens(t *testing.T) {
	for _, tt := range []struct {
		usage  float64
		higher bool
		goes   bool
	}{{0.5, false, true}, {0.5, true, false}, {0.2, true, true}, {0.95, false, false}} {
		synctest.Test(t, func(t *testing.T) {
			s := newSite(1, 0, time.Second)
			s.model.Endpoints[0].Slots = 1000
			s.engines[0].replica.SetStats(&fleet.Stats{At: time.Now(), Waiting: 0, Running: 1, KVUsage: schedule.Gauge(tt.usage)})
			if tt.higher {
				lease, err := s.gate.Acquire(t.Context(), s.request("platinum", "a"))
				if err != nil {
					t.Fatal(err)
				}
				lease.Release(-1)
			}
			a := s.start(t.Context(), s.request("bronze", "a")) // ceiling 0.3, of 0.9
			if a.went() != tt.goes {
				t.Errorf("%+v: it goes: %v", tt, a.went())
			}
			if a.went() {
				a.lease.Release(1)
			}
			a.cancel()
		})
	}
}
