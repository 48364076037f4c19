package exchange

import (
	"errors"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/llmgw/llmgw/modules/schedule"
)

func TestEndGivesAllBackOnce(t *testing.T) {
	w := newWorld(t, "gpu1:8000")
	x := w.ask(t, chatBody)
	e := mustPick(t, x)
	for range 3 {
		x.End()
	}
	w.atRest(t)
	if len(w.ended) != 1 || w.ended[0] != x || w.opened != 1 {
		t.Errorf("opened %d, ended %d", w.opened, len(w.ended))
	}
	// What it was stays to be read by who reports it.
	if x.Endpoint() != e || x.Attempts() != 1 || x.Pool() != "default" || x.ModelName() != "m" {
		t.Errorf("endpoint %v, %d attempts, pool %q, model %q", x.Endpoint(), x.Attempts(), x.Pool(), x.ModelName())
	}
}

func TestEndAtEveryStage(t *testing.T) {
	for stage, do := range map[string]func(x *Exchange, r *http.Request){
		"opened":   func(*Exchange, *http.Request) {},
		"read":     func(x *Exchange, r *http.Request) { _ = x.Read(r) },
		"resolved": func(x *Exchange, r *http.Request) { _ = errors.Join(x.Read(r), x.Resolve()) },
		"picked": func(x *Exchange, r *http.Request) {
			_ = errors.Join(x.Read(r), x.Resolve())
			x.Pick()
		},
		"picked again": func(x *Exchange, r *http.Request) {
			_ = errors.Join(x.Read(r), x.Resolve())
			x.Pick()
			x.Pick()
		},
		"failed": func(x *Exchange, r *http.Request) {
			_ = errors.Join(x.Read(r), x.Resolve())
			for x.Pick() != nil {
				x.Fail(Fail(ErrReplica, "refused"))
			}
		},
		"answered": func(x *Exchange, r *http.Request) {
			_ = errors.Join(x.Read(r), x.Resolve())
			x.Pick()
			x.DropBody()
		},
	} {
		t.Run(stage, func(t *testing.T) {
			w := newWorld(t, fourReplicas...)
			r := newRequest(chatBody)
			x := w.open(t, r)
			do(x, r)
			x.End()
			w.atRest(t)
		})
	}
}

// The client leaves at any moment, and the end comes from another goroutine
// than the one that serves the request. Run with -race.
func TestEndFromAnotherGoroutine(t *testing.T) {
	w := newWorld(t, fourReplicas...)
	w.Ended = func(x *Exchange) {
		// What metrics and logs read of it.
		_, _, _, _ = x.ModelName(), x.Pool(), x.Attempts(), x.Result()
		_, _, _ = x.Overhead(), x.Endpoint(), x.Err()
		w.lock(func() { w.ended = append(w.ended, x) })
	}
	for i := range 300 {
		r := newRequest(chatBody)
		x := w.open(t, r)
		var wg sync.WaitGroup
		wg.Go(func() {
			for range i % 50 {
				x.Attempts()
			}
			x.End()
		})
		if x.Read(r) == nil && x.Resolve() == nil {
			for x.Pick() != nil {
				out := newRequest("")
				x.Direct(out)
				x.Record(func(r *Result) { r.Sent = time.Now() })
				x.Fail(Fail(ErrReplica, "refused"))
			}
		}
		x.Finish(OutcomeOK)
		x.DropBody()
		x.End()
		wg.Wait()
	}
	w.atRest(t)
	if len(w.ended) != 300 {
		t.Errorf("%d were reported", len(w.ended))
	}
}

func TestR01_AbortedExchangesLeaveNothing(t *testing.T) {
	w := newWorld(t, fourReplicas[:3]...)
	var wg sync.WaitGroup
	for i := range 300 {
		x := w.ask(t, chatBody)
		pick := func() {
			if x.Pick() == nil {
				t.Error(x.Err())
			}
		}
		wg.Go(func() {
			switch i % 3 {
			case 0: // aborted before headers
				pick()
				x.Finish(OutcomeCancelled)
			case 1: // in mid-stream, and closed twice
				pick()
				x.DropBody()
				x.Finish(OutcomeCancelled)
				x.End()
			case 2:
				pick()
				x.Fail(Fail(ErrReplica, "reset"))
				pick()
				x.Finish(OutcomeOK)
			}
			x.End()
		})
	}
	wg.Wait()
	w.atRest(t)
	// What comes next finds all three alike.
	var exchanges []*Exchange
	for range 90 {
		x := w.ask(t, chatBody)
		mustPick(t, x)
		exchanges = append(exchanges, x)
	}
	for _, r := range w.fleet.Replicas() {
		if r.Inflight() < 27 || r.Inflight() > 33 {
			t.Errorf("%s has %d of 90", r.ID, r.Inflight())
		}
	}
	for _, x := range exchanges {
		x.End()
	}
	w.atRest(t)
}

func TestFirstOutcomeStays(t *testing.T) {
	w := newWorld(t, "gpu1:8000")
	x := w.ask(t, chatBody)
	x.Finish(OutcomeBroken)
	x.Finish(OutcomeOK)
	x.Record(func(r *Result) { r.Status = 200 })
	x.End()
	x.Finish(OutcomeCancelled)
	x.Record(func(r *Result) { r.Status = 500 })
	if got := x.Result(); got.Outcome != OutcomeBroken || got.Status != 200 {
		t.Errorf("result %+v", got)
	}
}

// Only answers that came to their end make a replica look fast.
func TestOnlyCompleteAnswersCountForTheDrainRate(t *testing.T) {
	for _, outcome := range Outcomes {
		w := newWorld(t, "gpu1:8000")
		x := w.ask(t, chatBody)
		r := mustPick(t, x).Replica
		x.Finish(outcome)
		x.End()
		var c schedule.Replica
		r.Fill(&c, w.Now().Add(time.Second), 0, 0)
		if c.DrainRate.Known() != (outcome == OutcomeOK) {
			t.Errorf("%s: drain rate %v", outcome, c.DrainRate)
		}
	}
	// An answer of the gateway's own, without a replica, counts for none.
	w := newWorld(t, "gpu1:8000")
	x := w.ask(t, chatBody)
	x.Finish(OutcomeOK)
	x.End()
	var c schedule.Replica
	w.fleet.Replicas()[0].Fill(&c, w.Now().Add(time.Second), 0, 0)
	if c.DrainRate.Known() {
		t.Errorf("drain rate %v", c.DrainRate)
	}
}

// The gateway's own time leaves out how long the client took to send its body.
func TestOverhead(t *testing.T) {
	w := newWorld(t, "gpu1:8000")
	now := time.Now()
	w.Now = func() time.Time { return now }
	r := newRequest(chatBody)
	inner := r.Body
	r.Body = readFunc(func(p []byte) (int, error) {
		now = now.Add(3 * time.Second) // a slow client
		return inner.Read(p)
	})
	x := w.open(t, r)
	if x.Overhead() != 0 {
		t.Errorf("overhead %v before anything was sent", x.Overhead())
	}
	if err := errors.Join(x.Read(r), x.Resolve()); err != nil {
		t.Fatal(err)
	}
	now = now.Add(2 * time.Millisecond)
	x.Record(func(r *Result) { r.Sent = now })
	if got := x.Overhead(); got != 2*time.Millisecond {
		t.Errorf("overhead %v, want 2ms", got)
	}
}

func TestHooksAreOptional(t *testing.T) {
	w := newWorld(t, "gpu1:8000")
	w.Hold, w.Release, w.Ended, w.Picked = nil, nil, nil, nil
	x := w.ask(t, chatBody)
	mustPick(t, x)
	if x.Runtime() != w.Runtime {
		t.Error("another runtime")
	}
	x.End()
	if w.fleet.Replicas()[0].Inflight() != 0 || w.Budget.Used() != 0 {
		t.Error("something is held")
	}
}
