package admit

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestFairShares: of three tenants one asks for a hundred times as much. The
// others wait hardly longer than alone with a third of the slots.
func TestFairShares(t *testing.T) {
	mean := func(slots int, clients map[string]int) (d time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			s := strict(t, 1, slots)
			ctx, stop := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			var waited, n atomic.Int64
			for tenant, count := range clients {
				for range count {
					wg.Go(func() {
						for ctx.Err() == nil {
							if d, err := s.ask(ctx, "silver", tenant, false); err == nil && tenant == "a" {
								waited.Add(int64(d))
								n.Add(1)
							}
						}
					})
				}
			}
			time.Sleep(2 * time.Minute)
			stop()
			wg.Wait()
			d = time.Duration(waited.Load() / n.Load())
		})
		return d
	}
	alone := mean(3, map[string]int{"a": 6})
	together := mean(9, map[string]int{"a": 6, "b": 6, "c": 600})
	if limit := alone * 13 / 10; together > limit {
		t.Errorf("it waits %v beside a flood, %v alone with a third", together, alone)
	}
}

// TestWeights: who has three times the weight gets three times the tokens.
func TestWeights(t *testing.T) {
	var l lane
	seq := uint64(0)
	push := func(tenant string, weight float64, tokens int64) {
		seq++
		w := &waiter{tenant: tenant, weight: weight, needs: needs{tokens: tokens}, seq: seq}
		w.inFlow.w = w
		l.push(w)
	}
	for range 1000 {
		push("heavy", 3, 100)
		push("light", 1, 50)
	}
	got := make(map[string]int64)
	for range 700 {
		w := l.head()
		got[w.tenant] += w.tokens
		l.serve(w)
	}
	if ratio := float64(got["heavy"]) / float64(got["light"]); ratio < 2.9 || ratio > 3.1 {
		t.Errorf("tokens %v", got)
	}
}

// TestNewTenantsDoNotShutOutOthers: one that has had its turn gets the next one although
// there is always one that comes for the first time.
func TestNewTenantsDoNotShutOutOthers(t *testing.T) {
	for _, weight := range []float64{1, 3} {
		var l lane
		seq := uint64(0)
		push := func(tenant string) {
			seq++
			w := &waiter{tenant: tenant, weight: weight, needs: needs{tokens: 100}, seq: seq}
			w.inFlow.w = w
			l.push(w)
		}
		const waiting = 5
		for i := range waiting {
			push(fmt.Sprint("first ", i))
		}
		push("good")
		got := 0
		for i := range 200 {
			w := l.head()
			l.serve(w)
			if w.tenant == "good" {
				got++
				push("good")
			} else {
				push(fmt.Sprint(i))
			}
		}
		if share := 200 / (waiting + 1); got < share-2 || got > share+2 {
			t.Errorf("weight %v: it gets %d of 200 turns, want %d", weight, got, share)
		}
	}
}

// TestTheClockIsNotBehindTheTurn: who comes after another's turn began does not go before the
// rest of what was there, although one of much weight that left had held back the clock.
func TestTheClockIsNotBehindTheTurn(t *testing.T) {
	var l lane
	seq := uint64(0)
	push := func(tenant string, weight float64, tokens int64) *waiter {
		seq++
		w := &waiter{tenant: tenant, weight: weight, needs: needs{tokens: tokens}, seq: seq}
		w.inFlow.w = w
		l.push(w)
		return w
	}
	for range 3 {
		push("a", 1, 100)
	}
	leaves := push("heavy", 9, 100)
	l.serve(l.head())
	l.remove(leaves)
	l.serve(l.head())
	for range 3 {
		push("late", 1, 30)
	}
	var got []string
	for l.n > 0 {
		got = append(got, l.head().tenant)
		l.serve(l.head())
	}
	if !slices.Equal(got, []string{"a", "late", "late", "late"}) {
		t.Errorf("they go in the order %v", got)
	}
}

// TestIdlingEarnsNothing: who comes back after a pause takes turns with those that went on.
func TestIdlingEarnsNothing(t *testing.T) {
	var l lane
	seq := uint64(0)
	push := func(tenant string) {
		seq++
		w := &waiter{tenant: tenant, weight: 1, needs: needs{tokens: 100}, seq: seq}
		w.inFlow.w = w
		l.push(w)
	}
	for range 100 {
		push("busy")
	}
	push("idle")
	for range 60 {
		l.serve(l.head())
	}
	for range 40 {
		push("idle")
	}
	got := 0
	for range 20 {
		if l.head().tenant == "idle" {
			got++
		}
		l.serve(l.head())
	}
	if got < 9 || got > 11 {
		t.Errorf("after a pause it gets %d of 20 turns", got)
	}
}

// TestWhatWasSetAsideIsCharged: a tenant whose requests go past its turns takes its next turn
// after those whose tokens they took, whether it is known by then or not.
func TestWhatWasSetAsideIsCharged(t *testing.T) {
	for _, known := range []bool{false, true} {
		var l lane
		seq := uint64(0)
		push := func(tenant string, tokens int64) *waiter {
			seq++
			w := &waiter{tenant: tenant, weight: 1, needs: needs{tokens: tokens}, seq: seq}
			w.inFlow.w = w
			l.push(w)
			return w
		}
		if known {
			push("wide", 100)
			l.serve(push("wide", 100))
		}
		wide := push("wide", 1000)
		for range 20 {
			push("narrow", 100)
		}
		l.setAside(wide)
		wide.lane.serve(wide)
		for range 9 {
			push("wide", 100)
		}
		got := 0
		for range 9 {
			if l.head().tenant == "narrow" {
				got++
			}
			l.serve(l.head())
		}
		if got < 8 {
			t.Errorf("known %v: %d of 9 turns are the other's", known, got)
		}
	}
}

// TestWhoHasWaitedIsBeforeOthers of its tenant, when it comes again or from another model.
func TestWhoHasWaitedIsBeforeOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, first := patient(t, func(*Band) {})
		all := []*asked{s.wait(t, "silver", "a"), s.wait(t, "silver", "a"), s.wait(t, "silver", "a")}
		for _, waited := range []time.Duration{2500 * time.Millisecond, time.Hour / 2} {
			r := s.request("silver", "a")
			r.Waited = waited
			a := s.start(t.Context(), r)
			a.went()
			all = append(all, a)
		}
		if got := order(t, first, all); !slices.Equal(got, []int{4, 0, 3, 1, 2}) {
			t.Errorf("they went in the order %v", got)
		}
		s.atRest(t)
	})
}

// TestTenantsWithoutEnd: names that clients make up do not fill the memory.
func TestTenantsWithoutEnd(t *testing.T) {
	var l lane
	seq := uint64(0)
	push := func(tenant string, weight float64) *waiter {
		seq++
		w := &waiter{tenant: tenant, weight: weight, needs: needs{tokens: 100}, seq: seq}
		w.inFlow.w = w
		l.push(w)
		return w
	}
	push("first", 1)
	push("first", 1) // one waits always
	for i := range maxIdle + 2000 {
		push(fmt.Sprint(i), 1e-9) // so little that the clock does not catch up with it
		l.serve(l.head())
	}
	if most := maxIdle + len(l.turn) + 1; len(l.flows) > most {
		t.Errorf("%d tenants are remembered, want at most %d", len(l.flows), most)
	}
}

// TestTurnsOverReloads: tenants take turns whether queues are made anew between them or not,
// and whether others pass their requests or not.
func TestTurnsOverReloads(t *testing.T) {
	for _, n := range []int64{1, 2} {
		for _, reload := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				s := strict(t, 1, int(n))
				start := func(tenant string) *asked {
					r := s.request("silver", tenant)
					r.Sequences = n
					a := s.start(t.Context(), r)
					synctest.Wait()
					return a
				}
				running := start("x")
				all, tenants := make(map[*asked]bool), make(map[*asked]string)
				for _, tenant := range []string{"a", "a", "a", "a", "b", "b"} {
					a := start(tenant)
					all[a], tenants[a] = true, tenant
				}
				order := ""
				for range 6 {
					if reload {
						s.configure(t, s.gate.bands)
					}
					running.lease.Release(50)
					synctest.Wait()
					for a := range all {
						if a.went() {
							delete(all, a)
							running, order = a, order+tenants[a]
						}
					}
				}
				if order != "ababaa" {
					t.Errorf("of %d sequences, reload %v: they go in the order %s", n, reload, order)
				}
				running.lease.Release(50)
				s.atRest(t)
			})
		}
	}
}

// TestLeadOfThoseSetAside: a tenant whose requests are all set aside keeps its lead where others
// pass them, too.
func TestLeadOfThoseSetAside(t *testing.T) {
	var old, anew lane
	seq := uint64(0)
	waits := func(l *lane, tenant string) *waiter {
		seq++
		w := &waiter{tenant: tenant, weight: 1, needs: needs{tokens: 100}, seq: seq}
		w.inFlow.w = w
		l.push(w)
		return w
	}
	first, second := waits(&old, "a"), waits(&old, "a")
	waits(&old, "b")
	old.serve(first)
	old.setAside(second)
	d := second.lead()
	second.lane.remove(second)
	waits(&anew, "b")
	anew.asides().push(second)
	second.resume(d)
	if want := old.ahead("a"); want == 0 || anew.ahead("a") != want || anew.turnOf(second) {
		t.Errorf("it is ahead by %v, was by %v", anew.ahead("a"), want)
	}
}
