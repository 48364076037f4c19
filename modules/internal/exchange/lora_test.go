package exchange

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/internal/fleet"
	"github.com/llmgw/llmgw/modules/internal/openai"
	"github.com/llmgw/llmgw/modules/internal/pipeline"
	"github.com/llmgw/llmgw/modules/schedule"
)

// TestSixtyAdapters: with 60 adapters on eight replicas of eight slots each, requests go where theirs is
// loaded, no replica gets much more than its share, and a hot one is on several.
func TestSixtyAdapters(t *testing.T) {
	const adapters, replicas, slots, requests = 60, 8, 8, 6000
	run := func(affinity, onDemand bool) (loads, brought int, most float64, hot int) {
		w := newWorld(t)
		var models []*catalog.Model
		var names []string
		var listed []fleet.Adapter
		for i := range adapters {
			names = append(names, fmt.Sprint("adapter-", i))
			listed = append(listed, fleet.Adapter{Name: names[i], Path: "/loras/" + names[i]})
		}
		var endpoints []*catalog.Endpoint
		for i := range replicas {
			e := w.endpoint(t, fmt.Sprintf("gpu%d:8000", i))
			if !onDemand {
				e.Replica.SetAdapters(e.Replica.Listing(), listed)
			}
			e.Replica.SetStats(&fleet.Stats{At: time.Now().Add(time.Hour), Waiting: 0, Running: 0, KVUsage: 0, MaxLoRAs: slots})
			endpoints = append(endpoints, e)
		}
		for _, name := range names {
			endpoints := slices.Clone(endpoints)
			for i, e := range endpoints {
				at := *e
				if onDemand {
					at.Adapter = &catalog.Adapter{Adapter: fleet.Adapter{Name: name, Path: "/loras/" + name}, Base: "base"}
				}
				endpoints[i] = &at
			}
			models = append(models, &catalog.Model{Name: name, TargetWaiting: 4, KVCeiling: 0.9, Endpoints: endpoints, Prefix: catalog.Prefix{Rules: schedule.PrefixRules{BalanceAbs: 16, BalanceRel: 1.5}}})
		}
		w.serve(t, nil, models...)
		if affinity {
			p := w.Profiles["chat"]
			p.Scorers = append(p.Scorers, pipeline.WeightedScorer{Name: "lora", Weight: 2, Scorer: schedule.LoRA{}})
		}
		random := rand.New(rand.NewPCG(1, 2))
		loaded := make(map[string][]string) // by replica, used last last
		served := make(map[string]int)
		var running []*Exchange
		where := make(map[string]bool) // has the hot one
		for range requests {
			i := int(float64(adapters) * random.Float64() * random.Float64() * random.Float64()) // the first are hot
			x := w.ask(t, fmt.Sprintf(`{"model":%q,"messages":[]}`, names[i]))
			r := mustPick(t, x).Replica
			if err := r.LoadAdapter(t.Context(), listed[i], func() func(context.Context) error {
				return func(context.Context) error { brought++; return nil }
			}); err != nil {
				t.Fatal(err)
			}
			at := r.ID
			served[at]++
			if i == 0 {
				where[at] = true
			}
			has := loaded[at]
			if at := slices.Index(has, names[i]); at >= 0 {
				has = slices.Delete(has, at, at+1)
			} else {
				loads++
			}
			if has = append(has, names[i]); len(has) > slots {
				has = has[1:]
			}
			loaded[at] = has
			if running = append(running, x); len(running) > 64 {
				end := random.IntN(len(running))
				running[end].End()
				running = slices.Delete(running, end, end+1)
			}
		}
		for _, x := range running {
			x.End()
		}
		w.atRest(t)
		for _, n := range served {
			most = max(most, float64(n)*replicas/requests)
		}
		return loads, brought, most, len(where)
	}
	without, _, _, _ := run(false, false)
	with, _, most, hot := run(true, false)
	if with > without/4 || most > 1.5 || hot < 2 {
		t.Errorf("%d loads of %d requests, %d without affinity; the busiest has %.2f of its share; the hottest is on %d", with, requests, without, most, hot)
	}
	t.Logf("%d loads, %d without affinity; the busiest has %.2f of its share; the hottest is on %d", with, without, most, hot)
	with, brought, most, hot := run(true, true)
	if with > without/4 || brought > 2*adapters || most > 1.5 || hot < 2 {
		t.Errorf("on demand: %d loads into slots, %d into engines; the busiest has %.2f of its share; the hottest is on %d", with, brought, most, hot)
	}
	t.Logf("on demand: %d loads into slots, %d into engines; the busiest has %.2f of its share; the hottest is on %d", with, brought, most, hot)
}

// TestServedAdapter: what an engine has had from its start counts as an adapter by the name that it is
// listed by, also where the engine is asked for it by another.
func TestServedAdapter(t *testing.T) {
	w := newWorld(t)
	e := w.endpoint(t, "gpu1:8000")
	e.Replica.SetAdapters(e.Replica.Listing(), []fleet.Adapter{{Name: "sql", Served: "base:sql"}})
	for served, want := range map[string]string{"base:sql": "sql", "sql": "sql", "base": "", "base:law": "", "": ""} {
		e.ServedModel = served
		if name, absent, ok := adapter(&catalog.Model{Name: "m"}, e); name != want || absent || ok != (want != "") {
			t.Errorf("asked for as %q: adapter %q, absent %v, %v", served, name, absent, ok)
		}
	}
}

// TestAdapterLost: an engine's word that it does not know the model says that it has lost the adapter, once
// for each request, and no other error does.
func TestAdapterLost(t *testing.T) {
	w := newWorld(t)
	e := w.endpoint(t, "gpu1:8000")
	e.Adapter = &catalog.Adapter{Adapter: fleet.Adapter{Name: "sql", Path: "/loras/sql"}, Base: "base"}
	w.serve(t, nil, &catalog.Model{Name: "sql", TargetWaiting: 4, KVCeiling: 0.9, Endpoints: []*catalog.Endpoint{e}, Reliability: catalog.Reliability{Total: time.Hour}})
	w.LoadAdapter = func(context.Context, *catalog.Model, *catalog.Endpoint) error { w.loads++; return nil }
	ask := func() *Exchange {
		x := w.ask(t, `{"model":"sql","messages":[]}`)
		mustPick(t, x)
		if err := x.LoadAdapter(t.Context()); err != nil {
			t.Fatal(err)
		}
		return x
	}
	a, b := ask(), ask()
	if a.Refusal(&openai.Error{Status: http.StatusNotFound, Message: "no such response"}) || !e.Replica.HasAdapter(e.Adapter.Adapter) {
		t.Error("any 404 counts")
	}
	lost := openai.Normalize(http.StatusNotFound, []byte(`{"error":{"message":"The model `+"`sql`"+` does not exist.","type":"NotFoundError","param":"model","code":404}}`))
	if !a.Refusal(lost) || e.Replica.HasAdapter(e.Adapter.Adapter) {
		t.Errorf("%+v does not count", lost)
	}
	again := func(x *Exchange) {
		t.Helper()
		mustPick(t, x) // the same replica
		if err := x.LoadAdapter(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	again(a)
	if w.loads != 2 || !b.Refusal(lost) || !e.Replica.HasAdapter(e.Adapter.Adapter) {
		t.Errorf("%d loads; who was sent before it came back takes it away again", w.loads)
	}
	again(b)
	if b.Refusal(lost) || w.loads != 2 || a.attempts != 2 || a.tries != 1 {
		t.Errorf("%d loads, and there is no end; %d attempts, %d tries", w.loads, a.attempts, a.tries)
	}
	a.End()
	b.End()
	w.atRest(t)
}

// TestFullBesideFailed: with one replica that is full and another that could not load the adapter a request
// ends, however much room the other has.
func TestFullBesideFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var second *catalog.Endpoint
		w := gated(t, 0, func(m *catalog.Model) {
			u, _ := fleet.ParseURL("gpu3:8000")
			r, release := fleet.New(nil).Hold(u)
			t.Cleanup(release)
			second = &catalog.Endpoint{Replica: r, Pool: "default", Priority: 100, Weight: 1}
			m.Fallbacks, m.Endpoints = nil, append(m.Endpoints, second)
			for _, e := range m.Endpoints {
				e.Adapter = &catalog.Adapter{Adapter: fleet.Adapter{Name: "sql", Path: "/loras/sql"}, Base: "m"}
			}
		})
		full := w.fleet.Find("gpu1:8000")
		full.SetAdapters(full.Listing(), []fleet.Adapter{{Name: "sql", Path: "/loras/sql"}})
		fails := func() func(context.Context) error {
			return func(context.Context) error { return errors.New("no such file") }
		}
		if err := second.Replica.LoadAdapter(t.Context(), second.Adapter.Adapter, fails); err == nil {
			t.Fatal("it did not fail")
		}
		runs, _ := full.Take(-1, 1)
		refused, _ := full.Take(-1, 1)
		refused.Refused("answered 429", 0, time.Minute)
		refused.Release()
		x := w.ask(t, chatBody)
		if err := x.Admit(t.Context(), Class{}); err != nil {
			t.Fatal(err)
		}
		if e := x.PickOrWait(t.Context()); e != nil || !errors.Is(x.Err(), ErrFull) {
			t.Errorf("it goes to %v, %v", e, x.Err())
		}
		x.End()
		runs.Release()
		w.atRest(t)
	})
}
