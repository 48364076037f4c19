package exchange

import (
	"net/http"
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
		if wide.Refusal(full()) && wide.PickOrWait(t.Context()) != nil {
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
