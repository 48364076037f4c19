package admit

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestShedAtOnce: a request that would wait for longer than it cares to is told so, and
// for how long, before it has waited.
func TestShedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, lease := patient(t, func(*Band) {})
		var all []*asked
		for range 20 {
			all = append(all, s.wait(t, "silver", "a"))
		}
		for i := range 5 { // 150 tokens a request, one in two seconds
			time.Sleep(2 * time.Second)
			lease.Release(100)
			if !all[i].went() {
				t.Fatal("the next one waits still")
			}
			lease = all[i].lease
		}
		hurried := s.request("silver", "a")
		hurried.Deadline = 5 * time.Second
		begin := time.Now()
		a := s.start(t.Context(), hurried)
		if a.refused() != ReasonDeadline || time.Since(begin) != 0 {
			t.Fatalf("it was refused for %q after %v", a.refused(), time.Since(begin))
		}
		// 15 wait; the ends of the twenty seconds before these were slower.
		refused, _ := errors.AsType[*RejectedError](a.err)
		if d := refused.RetryAfter; d < 30*time.Second || d > 120*time.Second {
			t.Errorf("come back after %v", d)
		}
		hurried.Deadline = 10 * time.Minute
		if a := s.start(t.Context(), hurried); a.went() || a.refused() != "" {
			t.Errorf("one with time: %v", a.err)
		} else {
			all = append(all, a)
		}
		order(t, lease, all[5:])
		s.atRest(t)
	})
}

// TestTheFirstToEndAreTheShortOnes: while those run on that ran when requests began to wait,
// nobody knows how fast the queue will go.
func TestTheFirstToEndAreTheShortOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := strict(t, 1, 10)
		var long []*Lease
		for range 10 {
			lease, err := s.gate.Acquire(t.Context(), s.request("silver", "a"))
			if err != nil {
				t.Fatal(err)
			}
			long = append(long, lease)
		}
		time.Sleep(time.Second)
		var all []*asked
		for range 40 {
			all = append(all, s.start(t.Context(), s.request("silver", "a")))
			all[len(all)-1].went()
		}
		end := func(l *Lease) *Lease { // and the next goes
			time.Sleep(100 * time.Millisecond)
			l.Release(50)
			a := all[0]
			if all = all[1:]; !a.went() {
				t.Fatal("the next waits still")
			}
			return a.lease
		}
		short := end(long[0])
		for range 15 {
			short = end(short)
		}
		if v := s.gate.Explain(s.request("silver", "a")); v.EstimateKnown {
			t.Errorf("nine of ten run on, and it would wait for %v", v.Estimate)
		}
		running := []*Lease{short}
		for _, l := range long[1:] {
			running = append(running, end(l))
		}
		if v := s.gate.Explain(s.request("silver", "a")); !v.EstimateKnown {
			t.Error("all have ended, and nobody knows how fast the queue goes")
		}
		for _, l := range running {
			l.Release(1)
		}
		for _, a := range all {
			if !a.went() {
				a.cancel()
				synctest.Wait()
			}
			a.lease.Release(1)
		}
		s.atRest(t)
	})
}

// TestWaitBehindHigherBands: what higher bands have waiting goes at the pace of all, and the
// band's own at its own.
func TestWaitBehindHigherBands(t *testing.T) {
	s := strict(t, 1, 8)
	s.gate.lock()
	defer s.gate.unlock()
	now := time.Unix(1e9, 0)
	set := s.gate.set(s.model, now)
	set.held.add(0, 1) // the engine's own backlog takes no time
	set.busy = busyPeriod{since: now.Add(-10 * time.Second)}
	const platinum, silver = 0, 2
	for i := range 10 {
		set.drained[platinum].add(now.Add(time.Duration(i-10)*time.Second), 300)
		set.drained[silver].add(now.Add(time.Duration(i-10)*time.Second), 100)
	}
	wait := func(band int) time.Duration {
		w := &waiter{model: s.model, band: band, set: set, needs: needs{slots: 1, tokens: 1}}
		d, ok := set.wait(w, &s.gate.bands[band], now)
		if !ok {
			t.Fatal("nobody knows")
		}
		return d.Round(time.Second)
	}
	push := func(band int, tokens int64) {
		w := &waiter{tenant: "t", weight: 1, needs: needs{tokens: tokens}}
		w.inFlow.w = w
		set.lanes[band].push(w)
	}
	push(platinum, 4000) // at 400 a second
	if d := wait(silver); d != 10*time.Second {
		t.Errorf("behind those of platinum: %v", d)
	}
	push(silver, 1000) // at 100 a second
	w := &waiter{model: s.model, band: silver, tenant: "t", set: set, needs: needs{slots: 1, tokens: 1}}
	if d, ok := set.wait(w, &s.gate.bands[silver], now); !ok || d.Round(time.Second) != 20*time.Second {
		t.Errorf("behind those of its own tenant, too: %v", d)
	}
	set.lanes[platinum], set.lanes[silver] = lane{}, lane{}
}

// TestTheShortestLimitCounts: of the queue's, the band's and the request's own.
func TestTheShortestLimitCounts(t *testing.T) {
	for _, tt := range []struct {
		band, asked, want time.Duration
		reason            Reason
	}{
		{0, 0, 30 * time.Second, ReasonTTL},
		{10 * time.Second, 0, 10 * time.Second, ReasonDeadline},
		{10 * time.Second, 20 * time.Second, 20 * time.Second, ReasonDeadline},
		{10 * time.Second, time.Hour, 30 * time.Second, ReasonTTL},
		{time.Hour, 0, 30 * time.Second, ReasonTTL},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := strict(t, 1, 1)
			bands := Bands()
			for i := range bands {
				bands[i].Ceiling, bands[i].Deadline = 0.01, tt.band
			}
			s.configure(t, bands)
			first, err := s.gate.Acquire(t.Context(), s.request("silver", "a"))
			if err != nil {
				t.Fatal(err)
			}
			r, begin := s.request("silver", "a"), time.Now()
			r.Deadline = tt.asked
			a := s.start(t.Context(), r)
			<-a.done
			if d := time.Since(begin); a.refused() != tt.reason || d != tt.want {
				t.Errorf("%+v: %q after %v", tt, a.refused(), d)
			}
			first.Release(1)
		})
	}
}

// TestNeighbours: sets that have replicas in common know of each other, as long as both
// are in use.
func TestNeighbours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := strict(t, 4, 1)
		use := func(name string, from, to int) *set {
			m := *s.model
			m.Name, m.Endpoints = name, s.model.Endpoints[from:to]
			lease, err := s.gate.Acquire(t.Context(), &Request{Model: &m})
			if err != nil {
				t.Fatal(err)
			}
			lease.Release(1)
			s.gate.lock()
			defer s.gate.unlock()
			return s.gate.set(&m, time.Now())
		}
		type near struct {
			set    *set
			shared int
			share  float64
			covers bool
		}
		check := func(when string, of *set, want ...near) {
			t.Helper()
			var got []near
			for _, n := range of.neighbours() {
				got = append(got, near{n.set, len(n.shared), n.share, n.covers})
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: %+v, want %+v", when, got, want)
			}
		}
		all, half, other := use("all", 0, 4), use("half", 0, 2), use("other", 2, 4)
		if adapter := use("adapter", 0, 2); adapter != half {
			t.Error("models with the same replicas have different sets")
		}
		check("at first", all, near{half, 2, 1, false}, near{other, 2, 1, false})
		check("at first", half, near{all, 2, 0.5, true})
		time.Sleep(forgetAfter)
		use("half", 0, 2)
		time.Sleep(2 * time.Second)
		again := use("one", 0, 1) // a new one makes room for itself
		check("after a while", half, near{again, 1, 1, false})
		if len(s.gate.sets) != 2 || len(s.gate.latest) != 3 {
			t.Errorf("%d sets, %d models are remembered", len(s.gate.sets), len(s.gate.latest))
		}
	})
}

// TestWaitsInEngines: what waits in the engines counts for how long a request will wait,
// but not for how long an engine runs one.
func TestWaitsInEngines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(1, 4, time.Second)
		s.model.Endpoints[0].Slots = 4
		e := s.engines[0]
		var wg sync.WaitGroup
		ask := func() {
			wg.Go(func() {
				lease, err := s.gate.Acquire(t.Context(), s.request("always", "a"))
				if err != nil {
					t.Error(err)
					return
				}
				_, slot := s.pick()
				lease.Placed()
				e.serve()
				slot.Release()
				lease.Release(50)
			})
			synctest.Wait()
		}
		always := NewBand("always")
		always.Priority, always.Ceiling = 1000, Unlimited
		s.configure(t, append(Bands(), always))
		if v := s.gate.Explain(s.request("bronze", "a")); v.Waits != "" || v.EstimateKnown {
			t.Errorf("idle: %+v", v)
		}
		for range 24 { // 20 of these wait in the engine
			ask()
		}
		wg.Wait()
		s.gate.Depths() // reads the notes
		held := s.gate.set(s.model, time.Now()).held.value
		if held < 0.9 || held > 1.3 {
			t.Errorf("requests of 1 s that waited for up to 5 are taken for ones of %.1f s", held)
		}
		time.Sleep(2 * decay)
		for range 24 {
			ask()
		}
		// Until one of bronze may go, all but one of the 20 have to begin: 19 ends.
		v := s.gate.Explain(s.request("bronze", "a"))
		if v.Waits != WaitSaturated || !v.EstimateKnown || v.Estimate < 4*time.Second || v.Estimate > 6*time.Second {
			t.Errorf("behind 20 in the engine: %+v", v)
		}
		hurried := s.request("bronze", "a")
		hurried.Deadline = time.Second
		if a := s.start(t.Context(), hurried); a.refused() != ReasonDeadline {
			t.Errorf("one that cares to wait for 1 s: %v", a.err)
		}
		wg.Wait()
		s.atRest(t)
	})
}

// TestTokensBeforeWideOnes: of those that are set aside a wide one is told, which will be set
// aside, too, and a narrow one is not.
func TestTokensBeforeWideOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := strict(t, 1, 8)
		var all []*asked
		start := func(tenant string, sequences int64) *asked {
			r := s.request("silver", tenant)
			r.Sequences = sequences
			a := s.start(t.Context(), r)
			synctest.Wait()
			all = append(all, a)
			return a
		}
		for range 7 {
			start("x", 1)
		}
		for _, tenant := range []string{"a", "b", "c"} {
			if start(tenant, 8).went() {
				t.Fatal("there is no room for it")
			}
		}
		narrow, wide := s.request("silver", "d"), s.request("silver", "d")
		wide.Sequences = 8
		if v := s.gate.Explain(narrow); v.Waits != "" || v.Tokens != 0 {
			t.Errorf("narrow: %+v", v)
		}
		if v := s.gate.Explain(wide); v.Tokens < 300 {
			t.Errorf("wide: %+v", v)
		}
		for _, a := range all {
			if !a.went() {
				t.Error("it does not go to an idle replica")
			}
			a.lease.Release(-1)
		}
		s.atRest(t)
	})
}
