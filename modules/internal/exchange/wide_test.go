package exchange

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/internal/openai"
	"github.com/llmgw/llmgw/modules/schedule"
)

// TestTooManySequences: an engine that refuses a request of many sequences beside others has
// it alone once; if it refuses it then, too, the client gets its answer. Meanwhile others go
// there as though it had refused nothing.
func TestTooManySequences(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := gated(t, 4, func(m *catalog.Model) { m.Fallbacks = nil })
		r := w.fleet.Find("gpu1:8000")
		small := func() *Exchange {
			x := w.ask(t, chatBody)
			if err := x.Admit(t.Context(), Class{}); err != nil {
				t.Fatal(err)
			}
			mustPick(t, x)
			return x
		}
		runs := small()
		wide := w.ask(t, `{"model":"m","n":2,"messages":[]}`)
		if err := wide.Admit(t.Context(), Class{}); err != nil {
			t.Fatal(err)
		}
		mustPick(t, wide)
		if !wide.Refusal(tooBusy()) {
			t.Fatal("the refusal is for the client, though the engine has others")
		}
		if r.State() != schedule.Ready {
			t.Errorf("the replica is %v", r.State())
		}
		time.AfterFunc(5*time.Second, func() { runs.Succeeded(); runs.End() })
		begin := time.Now()
		if e := wide.PickOrWait(t.Context()); e == nil || time.Since(begin) != 5*time.Second || r.Inflight() != 1 {
			t.Fatalf("it goes to %v after %v, with %d there", e, time.Since(begin), r.Inflight())
		}
		if wide.Refusal(tooBusy()) && wide.PickOrWait(t.Context()) != nil || wide.mayWait() {
			t.Error("it is sent again, though the engine had nothing else")
		}
		wide.End()
		if r.State() != schedule.Ready {
			t.Errorf("the replica is %v", r.State())
		}
		small().End()
		w.atRest(t)
	})
}

// client sends requests one after the other, as one that does not care for Retry-After.
type client struct{ answered, refused, sent, early atomic.Int64 }

// drive lets a client send requests of so many sequences to a world with one engine, with a
// pause after each, until ctx ends. The engine refuses what takes says it does not take, and
// answers others in about a second.
func (w *world) drive(ctx context.Context, t *testing.T, e *engine, n int64, pause time.Duration) *client {
	c := new(client)
	body := fmt.Sprintf(`{"model":"m","n":%d,"messages":[]}`, n)
	send := func(i int) (ok bool) {
		x := w.ask(t, body)
		defer x.End()
		if x.Admit(ctx, Class{}) != nil {
			return false
		}
		for x.PickOrWait(ctx) != nil {
			c.sent.Add(1)
			time.Sleep(2 * time.Millisecond)
			others := e.has.Load()
			if e.take(n) {
				x.Alive()
				time.Sleep(time.Duration(700+i*137%600) * time.Millisecond)
				e.has.Add(-n)
				x.Succeeded()
				return true
			}
			if x.lease.Alone() && others > 0 {
				c.early.Add(1)
			}
			if !x.Refusal(tooBusy()) {
				return false
			}
		}
		return false
	}
	go func() {
		for i := 0; ctx.Err() == nil; i++ {
			if send(i) {
				c.answered.Add(1)
			} else {
				c.refused.Add(1)
			}
			time.Sleep(pause)
		}
	}()
	return c
}

// engine takes so many sequences at once, and refuses more.
type engine struct{ limit, has atomic.Int64 }

func takes(limit int64) *engine {
	e := new(engine)
	e.limit.Store(limit)
	return e
}

func (e *engine) take(n int64) bool {
	if e.has.Add(n) > e.limit.Load() {
		e.has.Add(-n)
		return false
	}
	return true
}

func tooBusy() *openai.Error {
	return &openai.Error{Status: http.StatusServiceUnavailable, Message: "too many requests"}
}

// TestTooManySequencesBesideOthers: a request that is always refused is sent twice and then no
// more for a while, and costs others little.
func TestTooManySequencesBesideOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := gated(t, 4, func(m *catalog.Model) { m.Fallbacks = nil })
		ctx, stop := context.WithCancel(t.Context())
		e := takes(4)
		var all []*client
		for range 8 {
			all = append(all, w.drive(ctx, t, e, 1, 5*time.Millisecond))
		}
		time.Sleep(5 * time.Second)
		c := w.drive(ctx, t, e, 6, 10*time.Second)
		time.Sleep(30 * time.Second)
		if sent, refused := c.sent.Load(), c.refused.Load(); refused < 3 || sent > 2+refused {
			t.Errorf("%d requests were sent %d times", refused, sent)
		}
		stop()
		time.Sleep(time.Minute)
		small := int64(0)
		for _, c := range all {
			small += c.answered.Load()
		}
		if small < 120 { // of 4 a second in 35 s
			t.Errorf("%d small ones were answered", small)
		}
		w.atRest(t)
	})
}

// TestTooManyForAHealthyEngine: an engine that runs usual requests, and refuses those of more
// sequences than it takes, stays in use, however many come of these.
func TestTooManyForAHealthyEngine(t *testing.T) {
	for _, pause := range []time.Duration{100 * time.Millisecond, time.Second} {
		synctest.Test(t, func(t *testing.T) {
			w := gated(t, 4, func(m *catalog.Model) { m.Fallbacks = nil })
			ctx, stop := context.WithCancel(t.Context())
			e := takes(4)
			w.drive(ctx, t, e, 6, pause)
			time.Sleep(20 * time.Second) // nothing else for a while
			small, wide := w.drive(ctx, t, e, 1, time.Second), w.drive(ctx, t, e, 4, time.Second)
			time.Sleep(time.Minute)
			stop()
			time.Sleep(time.Minute)
			if small.refused.Load() > 0 || small.answered.Load() < 20 || wide.answered.Load() < 15 {
				t.Errorf("small: %d answered, %d refused; of four: %d answered, %d refused",
					small.answered.Load(), small.refused.Load(), wide.answered.Load(), wide.refused.Load())
			}
			w.atRest(t)
		})
	}
}

// TestAloneIsAlone: a request that an engine takes when it has nothing else is answered.
func TestAloneIsAlone(t *testing.T) {
	for _, c := range []struct {
		slots           int
		limit, n, least int64
	}{{4, 3, 3, 30}, {4, 4, 2, 30}, {8, 4, 4, 20}} {
		synctest.Test(t, func(t *testing.T) {
			w := gated(t, c.slots, func(m *catalog.Model) { m.Fallbacks = nil })
			ctx, stop := context.WithCancel(t.Context())
			e := takes(c.limit)
			for i := range 6 {
				w.drive(ctx, t, e, 1, 5*time.Millisecond)
				time.Sleep(time.Duration(i) * 100 * time.Millisecond)
			}
			wide := w.drive(ctx, t, e, c.n, 5*time.Millisecond)
			time.Sleep(2 * time.Minute)
			stop()
			time.Sleep(time.Minute)
			if wide.answered.Load() < c.least || wide.early.Load() > 0 || wide.refused.Load() > 1 { // one as it ends
				t.Errorf("%+v: %d answered, %d refused, %d beside others", c, wide.answered.Load(), wide.refused.Load(), wide.early.Load())
			}
			w.atRest(t)
		})
	}
}

// TestBrokenEngineAndSequences: one that refuses all that it gets is let alone, of whatever
// number of sequences requests are.
func TestBrokenEngineAndSequences(t *testing.T) {
	for n := range int64(2) {
		synctest.Test(t, func(t *testing.T) {
			w := gated(t, 0, func(m *catalog.Model) { m.Fallbacks = nil })
			ctx, stop := context.WithCancel(t.Context())
			e := takes(0)
			c := w.drive(ctx, t, e, n+1, 5*time.Millisecond)
			time.Sleep(30 * time.Second)
			if n := c.sent.Load(); n > 40 {
				t.Errorf("of %d: %d requests were sent to it in 30 s", n+1, n)
			}
			e.limit.Store(100)
			time.Sleep(20 * time.Second)
			if c.answered.Load() == 0 {
				t.Errorf("of %d: none is answered although it works again", n+1)
			}
			stop()
			time.Sleep(time.Minute)
			w.atRest(t)
		})
	}
}
