package admit

import (
	"net/url"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/internal/fleet"
	"github.com/llmgw/llmgw/modules/schedule"
)

// order lets requests go one after the other on a single slot, and returns in which
// order they went.
func order(t *testing.T, first *Lease, all []*asked) (went []int) {
	t.Helper()
	first.Release(1)
	for range all {
		i := slices.IndexFunc(all, func(a *asked) bool { return a != nil && a.went() })
		if i < 0 {
			t.Fatalf("after %v nobody goes", went)
		}
		went = append(went, i)
		all[i].lease.Release(1)
		all[i] = nil
	}
	return went
}

// patient makes a site of one slot whose requests may wait for long, with the given
// changes to its bands.
func patient(t *testing.T, change func(*Band)) (*site, *Lease) {
	t.Helper()
	s := strict(t, 1, 1)
	s.model.Admission.QueueTTL = time.Hour
	bands := Bands()
	for i := range bands {
		bands[i].Ceiling, bands[i].Aging = 0.01, time.Minute
		change(&bands[i])
	}
	s.configure(t, bands)
	first, err := s.gate.Acquire(t.Context(), s.request("silver", "x"))
	if err != nil {
		t.Fatal(err)
	}
	return s, first
}

func (s *site) wait(t *testing.T, band, tenant string) *asked {
	t.Helper()
	a := s.start(t.Context(), s.request(band, tenant))
	if a.went() {
		t.Fatalf("%s does not wait", band)
	}
	time.Sleep(time.Second)
	return a
}

// TestAging: once its oldest has waited for long, a band gets one turn for each ten of
// those above it, whatever these are, and no more.
func TestAging(t *testing.T) {
	noTick(t)
	synctest.Test(t, func(t *testing.T) {
		s, lease := patient(t, func(b *Band) {
			if b.Name == "silver" {
				b.Aging = 0 // it does not hold up those below it
			}
		})
		low := []*asked{s.wait(t, "bronze", "a"), s.wait(t, "bronze", "a"), s.wait(t, "silver", "a")}
		next := s.wait(t, "gold", "b")
		var went []int // after how many of gold, which leaves no slot
		for i := range 120 {
			time.Sleep(time.Second)
			after := s.wait(t, "gold", "b")
			lease.Release(1)
			for _, a := range low {
				if a != nil && a.went() {
					went = append(went, i)
					a.lease.Release(1)
					low = slices.DeleteFunc(low, func(o *asked) bool { return o == a })
					break
				}
			}
			if !next.went() {
				t.Fatal("gold waits")
			}
			lease, next = next.lease, after
		}
		// Two seconds each, and the first has waited for five when gold begins.
		if len(went) != 2 || went[0] < 25 || went[0] > 30 || went[1] != went[0]+10 {
			t.Errorf("bronze went after %v of gold", went)
		}
		order(t, lease, []*asked{next, low[0]})
		s.atRest(t)
	})
}

// TestAgingUnderOneThatNeverWaits: its requests have no end and no ceiling, but a lower
// band gets its share of the turns, as far as the replicas are not full.
func TestAgingUnderOneThatNeverWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, first := patient(t, func(b *Band) {
			if b.Name == "platinum" {
				b.Ceiling = Unlimited
			}
		})
		gold := s.wait(t, "gold", "a")
		time.Sleep(time.Minute)
		ask := func() *Lease {
			lease, err := s.gate.Acquire(t.Context(), s.request("platinum", "b"))
			if err != nil {
				t.Fatal(err)
			}
			return lease
		}
		second := ask()
		for i := range 12 {
			if gold.went() != (i+1 >= agingShare) {
				t.Fatalf("after %d of platinum: gold goes: %v", i+1, gold.went())
			}
			ask().Release(1)
		}
		for _, l := range []*Lease{first, second, gold.lease} {
			l.Release(1)
		}
		s.atRest(t)
	})
}

// TestAgedOnesDoNotOverfill: however many of a band without a ceiling there are, what goes
// in their turns waits until the replicas are not full.
func TestAgedOnesDoNotOverfill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, first := patient(t, func(b *Band) {
			if b.Name == "platinum" {
				b.Ceiling = Unlimited
			}
		})
		gold := s.wait(t, "gold", "a")
		time.Sleep(time.Minute)
		all := []*Lease{first}
		for range agingShare + 5 {
			lease, err := s.gate.Acquire(t.Context(), s.request("platinum", "b"))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, lease)
		}
		for _, l := range all { // one runs, and four fill the queue
			if n := s.engines[0].replica.Load(time.Now(), 1).Total; n >= 6 && gold.went() {
				t.Fatalf("gold goes behind %v", n)
			}
			l.Release(1)
		}
		if !gold.went() {
			t.Fatal("gold waits still")
		}
		gold.lease.Release(1)
		s.atRest(t)
	})
}

// TestWithoutCeilingNobodyWaits, whatever waits in higher bands.
func TestWithoutCeilingNobodyWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, first := patient(t, func(b *Band) {
			if b.Name == "bronze" {
				b.Ceiling = Unlimited
			}
		})
		gold := s.wait(t, "gold", "a")
		for range 3 {
			a := s.start(t.Context(), s.request("bronze", "a"))
			if !a.went() {
				t.Fatal("it waits")
			}
			defer a.lease.Release(1)
		}
		// So it is if it has to wait with the others for a replica.
		s.model.Admission.ReplicaWait = time.Minute
		s.model.Endpoints[0].Replica.SetDraining(true)
		a := s.start(t.Context(), s.request("bronze", "a"))
		if a.went() {
			t.Fatal("there is no replica")
		}
		s.model.Endpoints[0].Replica.SetDraining(false)
		time.Sleep(tick)
		if !a.went() || gold.went() {
			t.Errorf("bronze goes: %v, gold: %v", a.went(), gold.went())
		}
		a.lease.Release(1)
		gold.cancel()
		first.Release(1)
	})
}

// TestOrderAcrossModels: with the same replicas and other thresholds.
func TestOrderAcrossModels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, first := patient(t, func(*Band) {})
		other := *s.model
		other.Name, other.TargetWaiting = "n", 2
		low := s.wait(t, "bronze", "a")
		high := s.start(t.Context(), &Request{Model: &other, Band: "gold", Prompt: 1000, Output: 1000, Holds: true})
		if high.went() {
			t.Fatal("there is no slot")
		}
		if got := order(t, first, []*asked{low, high}); !slices.Equal(got, []int{1, 0}) {
			t.Errorf("they went in the order %v", got)
		}
		s.atRest(t)
	})
}

// TestTheReplicaIsAnother: an endpoint that is gone and comes back is a new replica.
func TestTheReplicaIsAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := strict(t, 1, 1)
		old := s.model
		s.model.Endpoints[0].Replica.SetDraining(true)
		if a := s.start(t.Context(), s.request("silver", "a")); a.refused() != ReasonNoReplica {
			t.Fatalf("while it drains: %v", a.err)
		}
		r, release := fleet.New(nil).Hold(&url.URL{Scheme: "http", Host: old.Endpoints[0].Replica.URL.Host})
		defer release()
		again := *old
		again.Endpoints = []*catalog.Endpoint{{Replica: r, Weight: 1, Slots: 1}}
		s.model = &again
		s.configure(t, Bands())
		lease, err := s.gate.Acquire(t.Context(), s.request("silver", "a"))
		if err != nil {
			t.Fatalf("with the new one: %v", err)
		}
		lease.Release(1)
	})
}

// TestDisplacement: a request of a low band makes room for one of a higher, if that
// is enough.
func TestDisplacement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, first := patient(t, func(*Band) {})
		s.model.Admission.MaxQueued, s.model.Admission.MaxQueuedBytes = 3, 1000
		ask := func(band string, bytes int64) *asked {
			r := s.request(band, "a")
			r.Bytes = bytes
			a := s.start(t.Context(), r)
			a.went()
			return a
		}
		old, young, high := ask("bronze", 300), ask("bronze", 300), ask("gold", 300)
		for what, a := range map[string]*asked{"too many bytes": ask("platinum", 1001), "the same band": ask("bronze", 1)} {
			if a.refused() != ReasonFull {
				t.Errorf("%s: %v", what, a.err)
			}
		}
		if young.refused() != "" {
			t.Fatalf("displaced in vain: %v", young.err)
		}
		higher := ask("platinum", 350)
		if young.refused() != ReasonDisplaced || old.refused() != "" {
			t.Errorf("the newest of the lowest band: %v, the older one %v", young.err, old.err)
		}
		if got := s.gate.Depths(); len(got) != 3 || got[0].Band != "platinum" || got[0].Requests != 1 || got[0].Bytes != 350 || got[2].Tokens != 100 {
			t.Errorf("%+v", got)
		}
		order(t, first, []*asked{old, high, higher})
		s.atRest(t)
	})
}

// TestAFullQueueIsNobodys: in a full queue the tenant with most gives way to one with
// less, and who has most gets no more.
func TestAFullQueueIsNobodys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, first := patient(t, func(b *Band) { b.Queue = 4 })
		var all []*asked
		for range 4 {
			all = append(all, s.wait(t, "silver", "a"))
		}
		if a := s.start(t.Context(), s.request("silver", "a")); a.refused() != ReasonFull {
			t.Errorf("a fifth of a: %v", a.err)
		}
		b := s.wait(t, "silver", "b")
		if all[3].refused() != ReasonFull || all[2].refused() != "" {
			t.Errorf("the newest of a: %v, the one before: %v", all[3].err, all[2].err)
		}
		again := s.wait(t, "silver", "b")
		if all[2].refused() != ReasonFull {
			t.Errorf("the newest of a: %v", all[2].err)
		}
		if a := s.start(t.Context(), s.request("silver", "b")); a.refused() != ReasonFull {
			t.Errorf("more for b than for a: %v", a.err)
		}
		heavy := s.request("silver", "a")
		heavy.Weight = 4
		if a := s.start(t.Context(), heavy); a.went() || a.refused() != "" {
			t.Errorf("one of four times the weight: %v", a.err)
		} else {
			a.cancel()
		}
		order(t, first, []*asked{all[0], b, all[1]})
		again.cancel()
		synctest.Wait()
		s.atRest(t)
	})
}

// TestWaitsAreToldHonestly: what higher bands take is not there for lower ones.
func TestWaitsAreToldHonestly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, first := patient(t, func(b *Band) { b.Aging = 0 })
		bronze := []*asked{s.wait(t, "bronze", "a"), s.wait(t, "bronze", "a")}
		lease := first
		for range 10 { // gold takes nine tenths
			high := s.start(t.Context(), s.request("gold", "b"))
			synctest.Wait()
			time.Sleep(time.Second)
			lease.Release(50)
			if !high.went() {
				t.Fatal("gold waits")
			}
			lease = high.lease
		}
		if v := s.gate.Explain(s.request("bronze", "a")); v.EstimateKnown {
			t.Errorf("none of bronze has ended, and it would wait for %v", v.Estimate)
		}
		for _, a := range bronze { // not even with none before it in its band
			a.cancel()
		}
		next := s.wait(t, "gold", "b")
		if v := s.gate.Explain(s.request("bronze", "a")); v.Tokens == 0 || v.EstimateKnown {
			t.Errorf("gold takes all, and it would wait for %v", v.Estimate)
		}
		next.cancel()
		synctest.Wait()
		bronze = []*asked{s.wait(t, "bronze", "a"), s.wait(t, "bronze", "a")}
		if v := s.gate.Explain(s.request("gold", "a")); !v.EstimateKnown || v.Estimate > 3*time.Second {
			t.Errorf("gold ends one a second: %+v", v)
		}
		lease.Release(50)
		order(t, nil, bronze)
		s.atRest(t)
	})
}

// TestExplain says why and for how long a request would wait, and counts nothing.
func TestExplain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, first := patient(t, func(*Band) {})
		v := s.gate.Explain(s.request("bronze", "a"))
		if v.Band != "bronze" || v.Waits != WaitSaturated || v.Free != 0 || v.Slots != 1 || v.EstimateKnown {
			t.Errorf("%+v", v)
		}
		all := []*asked{s.wait(t, "gold", "a")}
		if v := s.gate.Explain(s.request("bronze", "a")); v.Waits != WaitTurn || v.Ahead != 1 || v.Tokens < 100 {
			t.Errorf("behind another: %+v", v)
		}
		order(t, first, all)
		if v := s.gate.Explain(s.request("bronze", "a")); v.Waits != "" {
			t.Errorf("with a slot free: %+v", v)
		}
		s.atRest(t)
	})
}

// TestSaturations of pools, the mean and the 90th percentile.
func TestSaturations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(10, 1, time.Second)
		for i, e := range s.engines {
			e.replica.SetStats(&fleet.Stats{At: time.Now(), Waiting: 0, Running: 0, KVUsage: schedule.Gauge(i) * 0.09})
			s.model.Endpoints[i].Pool = "p"
		}
		if v := Saturations(s.model, time.Now())["p"]; v < 0.449 || v > 0.451 {
			t.Errorf("the mean is %v", v)
		}
		s.model.Admission.P90 = true
		if v := Saturations(s.model, time.Now())["p"]; v < 0.799 || v > 0.801 {
			t.Errorf("the 90th percentile is %v", v)
		}
	})
}
