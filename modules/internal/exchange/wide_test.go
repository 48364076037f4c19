package exchange

import (
	"context"
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
		full := func() *openai.Error {
			return &openai.Error{Status: http.StatusServiceUnavailable, Message: "too many requests"}
		}
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
		if !wide.Refusal(full()) {
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
		if wide.Refusal(full()) && wide.PickOrWait(t.Context()) != nil || wide.waitAgain(t.Context()) {
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

// drive sends requests of a second, each after the one before it, to a world whose engines
// refuse all or none, and returns how many were answered well, and how many were sent.
func drive(ctx context.Context, t *testing.T, w *world, body string, refuse bool) (ok, sent *atomic.Int64) {
	ok, sent = new(atomic.Int64), new(atomic.Int64)
	go func() {
		for ; ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
			x := w.ask(t, body)
			if x.Admit(ctx, Class{}) != nil {
				x.End()
				continue
			}
			for e := x.PickOrWait(ctx); e != nil; e = x.PickOrWait(ctx) {
				sent.Add(1)
				time.Sleep(2 * time.Millisecond)
				if refuse {
					if x.Refusal(&openai.Error{Status: http.StatusServiceUnavailable, Message: "too many requests"}) {
						continue
					}
					break
				}
				time.Sleep(time.Second)
				x.Succeeded()
				ok.Add(1)
				break
			}
			x.End()
		}
	}()
	return ok, sent
}

const wideBody = `{"model":"m","n":2,"messages":[]}`

// TestTooManySequencesBesideOthers: while others wait, too, a request that is always refused
// is sent twice, and costs them little.
func TestTooManySequencesBesideOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := gated(t, 4, func(m *catalog.Model) { m.Fallbacks = nil })
		ctx, stop := context.WithCancel(t.Context())
		var all []*atomic.Int64
		for range 8 {
			ok, _ := drive(ctx, t, w, chatBody, false)
			all = append(all, ok)
		}
		time.Sleep(5 * time.Second)
		x := w.ask(t, wideBody)
		if err := x.Admit(ctx, Class{}); err != nil {
			t.Fatal(err)
		}
		sent, begin := 0, time.Now()
		for e := x.PickOrWait(ctx); e != nil; e = x.PickOrWait(ctx) {
			sent++
			time.Sleep(2 * time.Millisecond)
			if !x.Refusal(&openai.Error{Status: http.StatusServiceUnavailable, Message: "too many requests"}) {
				break
			}
		}
		x.End()
		if took := time.Since(begin); sent != 2 || took > 10*time.Second {
			t.Errorf("it was sent %d times in %v", sent, took)
		}
		time.Sleep(30 * time.Second)
		stop()
		time.Sleep(time.Minute)
		small := int64(0)
		for _, ok := range all {
			small += ok.Load()
		}
		if small < 120 { // of 4 a second in 35 s and more
			t.Errorf("%d small ones were answered", small)
		}
		w.atRest(t)
	})
}

// TestBrokenEngineAndSequences: one that refuses all that it gets is let alone, of whatever
// number of sequences requests are.
func TestBrokenEngineAndSequences(t *testing.T) {
	for _, body := range []string{chatBody, wideBody} {
		synctest.Test(t, func(t *testing.T) {
			w := gated(t, 0, func(m *catalog.Model) { m.Fallbacks = nil })
			ctx, stop := context.WithCancel(t.Context())
			_, sent := drive(ctx, t, w, body, true)
			time.Sleep(30 * time.Second)
			if n := sent.Load(); n > 40 {
				t.Errorf("%s: %d requests were sent to it in 30 s", body, n)
			}
			stop()
			time.Sleep(time.Minute)
			w.atRest(t)
		})
	}
}
