package exchange

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/internal/openai"
)

// TestAdmitWhileAllAreFull: a fallback serves at once, if it can; if it cannot either, its
// own model's replicas are waited for.
func TestAdmitWhileAllAreFull(t *testing.T) {
	for _, down := range []bool{false, true} {
		t.Run(fmt.Sprintf("fallback down %v", down), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := gated(t, 0, nil)
				r := w.fleet.Find("gpu1:8000")
				runs, _ := r.Take(-1, 1)
				refused, _ := r.Take(-1, 1)
				refused.Refused("answered 429", 0, time.Minute)
				refused.Release()
				time.AfterFunc(time.Second/2, runs.Release)
				if down {
					w.fleet.Find("gpu2:8000").Health.ConnectFailed("connect: refused")
				}
				x, begin := w.ask(t, chatBody), time.Now()
				if err := x.Admit(t.Context(), Class{}); err != nil {
					t.Fatal(err)
				}
				want := map[bool]string{false: "gpu2:8000", true: "gpu1:8000"}[down]
				if e := mustPick(t, x); e.Replica.ID != want || down == (time.Since(begin) == 0) {
					t.Errorf("it goes to %s after %v, want %s", e.Replica.ID, time.Since(begin), want)
				}
				x.End()
				time.Sleep(time.Second)
				w.atRest(t)
			})
		})
	}
}

// TestRefusedByAFullReplica: a request that was let go to an engine which takes no more has
// its turn again when one of that ends, and waits for no longer in all than it may.
func TestRefusedByAFullReplica(t *testing.T) {
	full := &openai.Error{Status: http.StatusServiceUnavailable, Message: "too many requests"}
	for name, running := range map[string]time.Duration{"one ends": 3 * time.Second, "none ends": time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := gated(t, 0, func(m *catalog.Model) { m.Fallbacks = nil })
				first := w.ask(t, chatBody)
				if err := first.Admit(t.Context(), Class{}); err != nil {
					t.Fatal(err)
				}
				mustPick(t, first)
				var engine sync.Mutex // runs one, and refuses others
				engine.Lock()
				ended := time.AfterFunc(running, func() {
					engine.Unlock()
					first.End()
				})
				begin := time.Now()
				var all []*Exchange
				var wg sync.WaitGroup
				for range 4 { // what it runs and no more
					x := w.ask(t, chatBody)
					all = append(all, x)
					wg.Go(func() {
						if x.Admit(t.Context(), Class{}) != nil {
							return
						}
						for e := x.PickOrWait(t.Context()); e != nil; e = x.PickOrWait(t.Context()) {
							if engine.TryLock() {
								time.Sleep(time.Second)
								engine.Unlock()
								x.Succeeded()
								break
							}
							if !x.Refusal(&openai.Error{Status: full.Status, Message: full.Message}) {
								t.Error("the engine's refusal is for the client")
								break
							}
						}
						x.End()
					})
				}
				wg.Wait()
				took := time.Since(begin)
				for i, x := range all {
					if got := x.Err(); (running < time.Hour) == (got != nil) || got != nil && !errors.Is(got, ErrQueueTimeout) {
						t.Errorf("%d: %v after %v", i, got, took)
					}
				}
				if running == time.Hour && (took < 30*time.Second || took > 45*time.Second) || running < time.Hour && took > 15*time.Second {
					t.Errorf("it took %v", took)
				}
				if ended.Stop() {
					first.End()
				}
				w.atRest(t)
			})
		})
	}
}

// TestWaitsWhenAllBecomeFull: a fallback serves those that wait already as well.
func TestWaitsWhenAllBecomeFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := gated(t, 1, nil)
		runs := w.ask(t, chatBody)
		if err := runs.Admit(t.Context(), Class{}); err != nil || mustPick(t, runs).Replica.ID != "gpu1:8000" {
			t.Fatal(err)
		}
		x, done := admitted(t, w, chatBody, Class{})
		select {
		case err := <-done:
			t.Fatalf("it does not wait: %v", err)
		default:
		}
		refused, _ := w.fleet.Find("gpu1:8000").Take(-1, 1)
		refused.Refused("answered 503", time.Minute, time.Minute)
		refused.Release()
		time.Sleep(time.Second)
		select {
		case err := <-done:
			if e := mustPick(t, x); err != nil || e.Replica.ID != "gpu2:8000" {
				t.Errorf("it goes to %s: %v", e.Replica.ID, err)
			}
		default:
			t.Error("it waits still, and the fallback is idle")
		}
		x.End()
		runs.End()
		w.atRest(t)
	})
}

// TestRefusedByOneAfterAnother: that the first has room again by the time at which the
// second has refused does not make it the client's affair.
func TestRefusedByOneAfterAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := gated(t, 0, func(m *catalog.Model) {
			m.Fallbacks = nil
			m.Reliability.Retries = 2
		})
		m := w.Catalog.Resolve("m")
		m.Endpoints = append(m.Endpoints, w.endpoint(t, "gpu3:8000"))
		refuse := func(x *Exchange) {
			t.Helper()
			if !x.Refusal(&openai.Error{Status: http.StatusTooManyRequests}) {
				t.Fatal("the refusal is for the client")
			}
		}
		var running []*Exchange
		for range 2 {
			x := w.ask(t, chatBody)
			if err := x.Admit(t.Context(), Class{}); err != nil {
				t.Fatal(err)
			}
			mustPick(t, x)
			running = append(running, x)
		}
		x := w.ask(t, chatBody)
		if err := x.Admit(t.Context(), Class{}); err != nil {
			t.Fatal(err)
		}
		first := x.PickOrWait(t.Context())
		refuse(x)
		if second := x.PickOrWait(t.Context()); second == first || second == nil {
			t.Fatalf("the second is %v", second)
		}
		for _, r := range running {
			if r.Endpoint() == first {
				r.End()
			}
		}
		refuse(x)
		if e := x.PickOrWait(t.Context()); e != first {
			t.Errorf("it goes to %v: %v", e, x.Err())
		}
		for _, r := range append(running, x) {
			r.End()
		}
		w.atRest(t)
	})
}

// TestRefusedByAFullFallback: its replicas are waited for again, too.
func TestRefusedByAFullFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := gated(t, 0, nil)
		w.fleet.Find("gpu1:8000").Health.ConnectFailed("connect: refused")
		runs := w.ask(t, chatBody)
		x := w.ask(t, chatBody)
		for _, x := range []*Exchange{runs, x} {
			if err := x.Admit(t.Context(), Class{}); err != nil || mustPick(t, x).Replica.ID != "gpu2:8000" {
				t.Fatal(err)
			}
		}
		x.Sending()
		if !x.Refusal(&openai.Error{Status: http.StatusTooManyRequests}) {
			t.Fatal("the refusal is for the client")
		}
		time.AfterFunc(2*time.Second, runs.End)
		begin := time.Now()
		if e := x.PickOrWait(t.Context()); e == nil || e.Replica.ID != "gpu2:8000" || time.Since(begin) < time.Second {
			t.Errorf("it goes to %v after %v: %v", e, time.Since(begin), x.Err())
		}
		if d := x.Queued(); d < time.Second {
			t.Errorf("it says it waited %v", d)
		}
		if d := x.Overhead(); d != 0 {
			t.Errorf("the gateway's own time is %v until the first attempt", d)
		}
		x.End()
		time.Sleep(2 * time.Second)
		w.atRest(t)
	})
}

// TestEndsWhileItWaitsAgain: a request whose client leaves while it waits for another turn has
// found no replica for no fault of any, and so has one whose time is over then.
func TestEndsWhileItWaitsAgain(t *testing.T) {
	for _, c := range []struct {
		after time.Duration
		want  error
	}{{time.Second, context.Canceled}, {time.Hour, ErrQueueTimeout}} {
		synctest.Test(t, func(t *testing.T) {
			w := gated(t, 0, func(m *catalog.Model) { m.Fallbacks, m.Admission.QueueTTL = nil, 10*time.Second })
			runs, x := w.ask(t, chatBody), w.ask(t, chatBody)
			for _, x := range []*Exchange{runs, x} {
				if err := x.Admit(t.Context(), Class{}); err != nil {
					t.Fatal(err)
				}
				mustPick(t, x)
			}
			failed, begin := "", time.Now()
			w.Picked = func(_ *Exchange, failure string) { failed += failure }
			if !x.Refusal(&openai.Error{Status: http.StatusTooManyRequests, RetryAfter: time.Minute}) {
				t.Fatal("the refusal is for the client")
			}
			ctx, leave := context.WithTimeout(t.Context(), c.after)
			defer leave()
			if e := x.PickOrWait(ctx); e != nil || !errors.Is(x.Err(), c.want) || failed != "" {
				t.Errorf("after %v it goes to %v: %v, counted as %q", time.Since(begin), e, x.Err(), failed)
			}
			if e := x.PickOrWait(ctx); e != nil || !errors.Is(x.Err(), c.want) {
				t.Errorf("asked again it goes to %v: %v", e, x.Err())
			}
			runs.End()
			x.End()
			w.atRest(t)
		})
	}
}
