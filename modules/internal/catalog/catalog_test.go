package catalog

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/llmgw/llmgw/modules/internal/fleet"
)

// endpoint returns an endpoint at the address, on a fleet of its own.
func endpoint(t testing.TB, f *fleet.Fleet, address string) *Endpoint {
	t.Helper()
	u, err := fleet.ParseURL(address)
	if err != nil {
		t.Fatal(err)
	}
	r, release := f.Hold(u)
	t.Cleanup(release)
	return &Endpoint{Replica: r, Pool: "default", Priority: 100, Weight: 1}
}

func build(t testing.TB, models []*Model, learning []*Endpoint) *Catalog {
	t.Helper()
	c, err := New(models, learning, Model{TargetWaiting: 4, KVCeiling: 0.9, Profile: "chat", SessionHeader: "X-Session-Id"})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// where lists the replicas of a model and what it is called on each.
func where(m *Model) []string {
	var list []string
	for _, e := range m.Endpoints {
		list = append(list, e.Replica.ID+" "+e.Served(m))
	}
	return list
}

func names(models []*Model) []string {
	var list []string
	for _, m := range models {
		list = append(list, m.Name)
	}
	return list
}

func TestResolve(t *testing.T) {
	f := fleet.New(nil)
	e := endpoint(t, f, "gpu1:8000")
	served := *e
	served.ServedModel = "org/Model-70B"
	c := build(t, []*Model{
		{Name: "zeta", Endpoints: []*Endpoint{e}},
		{Name: "alpha", Aliases: []string{"gpt-fast", "small"}, Endpoints: []*Endpoint{&served}},
	}, nil)
	for name, want := range map[string]string{
		"zeta": "zeta", "alpha": "alpha", "gpt-fast": "alpha", "small": "alpha",
		"Alpha": "", "": "", "org/Model-70B": "",
	} {
		m := c.Resolve(name)
		if (m == nil) != (want == "") || m != nil && m.Name != want {
			t.Errorf("Resolve(%q) = %+v, want %q", name, m, want)
		}
	}
	if want := []string{"alpha", "zeta"}; !slices.Equal(names(c.Models()), want) {
		t.Errorf("models %q, want %q", names(c.Models()), want)
	}
	if want := []string{"alpha", "gpt-fast", "small", "zeta"}; !slices.Equal(c.Names(), want) {
		t.Errorf("names %q, want %q", c.Names(), want)
	}
	if got := where(c.Resolve("small")); !slices.Equal(got, []string{"gpu1:8000 org/Model-70B"}) {
		t.Errorf("small is served as %q", got)
	}
	if got := where(c.Resolve("zeta")); !slices.Equal(got, []string{"gpu1:8000 zeta"}) {
		t.Errorf("zeta is served as %q", got)
	}
}

func TestNewRefusesFallbacksThatAreNone(t *testing.T) {
	for _, c := range []struct {
		model Model
		says  string
	}{
		{Model{Name: "a", Fallbacks: []string{"b", "c"}}, `model "a": fallback "c": there is no such model`},
		{Model{Name: "a", Aliases: []string{"x"}, Fallbacks: []string{"x"}}, `model "a": fallback "x" is the model itself`},
		{Model{Name: "a", Fallbacks: []string{"y"}}, ""}, // declared later, and by its alias
	} {
		_, err := New([]*Model{&c.model, {Name: "b", Aliases: []string{"y"}}}, nil, Model{})
		if got := fmt.Sprint(err); got != c.says && (c.says != "" || err != nil) {
			t.Errorf("%+v: %s, want %q", c.model.Fallbacks, got, c.says)
		}
	}
	// What is not declared may be listed by a replica.
	learning := []*Endpoint{endpoint(t, fleet.New(nil), "gpu1:8000")}
	if _, err := New([]*Model{{Name: "a", Fallbacks: []string{"z"}}}, learning, Model{}); err != nil {
		t.Error(err)
	}
}

func TestNewRefusesNamesThatAreTaken(t *testing.T) {
	for _, c := range []struct {
		name   string
		models []*Model
		says   string
	}{
		{
			"two models",
			[]*Model{{Name: "a"}, {Name: "a"}},
			`model "a": the name or alias "a" is taken by model "a"`,
		},
		{
			"an alias that is a model",
			[]*Model{{Name: "a"}, {Name: "b", Aliases: []string{"a"}}},
			`model "b": the name or alias "a" is taken by model "a"`,
		},
		{
			"a model that is an alias",
			[]*Model{{Name: "a", Aliases: []string{"b"}}, {Name: "b"}},
			`model "b": the name or alias "b" is taken by model "a"`,
		},
		{
			"two aliases",
			[]*Model{{Name: "a", Aliases: []string{"x"}}, {Name: "b", Aliases: []string{"x"}}},
			`model "b": the name or alias "x" is taken by model "a"`,
		},
		{
			"one alias twice",
			[]*Model{{Name: "a", Aliases: []string{"x", "x"}}},
			`model "a": the name or alias "x" is taken by model "a"`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := New(c.models, nil, Model{}); err == nil || err.Error() != c.says {
				t.Errorf("error %v, want %s", err, c.says)
			}
		})
	}
}

func TestLearnedModels(t *testing.T) {
	f := fleet.New(nil)
	declared := endpoint(t, f, "gpu1:8000")
	one, two := endpoint(t, f, "gpu2:8000"), endpoint(t, f, "gpu3:8000")
	two.Pool = "other"
	c := build(t, []*Model{{Name: "big", Aliases: []string{"b"}, Endpoints: []*Endpoint{declared}}}, []*Endpoint{one, two})
	if got := c.Learning(); len(got) != 2 || got[0] != one || got[1] != two {
		t.Errorf("learning %v", got)
	}
	if want := []string{"b", "big"}; !slices.Equal(c.Names(), want) {
		t.Fatalf("before anything was learned: %q", c.Names())
	}

	one.Replica.SetModels([]string{"small", "b"})
	two.Replica.SetModels([]string{"small"})
	if c.Resolve("small") != nil {
		t.Error("a model is there before it was learned")
	}
	c.Relearn()
	if got, want := where(c.Resolve("small")), []string{"gpu2:8000 small", "gpu3:8000 small"}; !slices.Equal(got, want) {
		t.Errorf("small is at %q, want %q", got, want)
	}
	// A name that config knows is joined, also by its alias, and asked for as
	// the engine lists it.
	if got, want := where(c.Resolve("big")), []string{"gpu1:8000 big", "gpu2:8000 b"}; !slices.Equal(got, want) {
		t.Errorf("big is at %q, want %q", got, want)
	}
	small := c.Resolve("small")
	if small.TargetWaiting != 4 || small.KVCeiling != 0.9 || small.Profile != "chat" || small.SessionHeader != "X-Session-Id" {
		t.Errorf("a learned model without the defaults: %+v", *small)
	}
	if small.Endpoints[1].Pool != "other" || small.Endpoints[1].Priority != 100 {
		t.Errorf("a learned endpoint lost its config: %+v", *small.Endpoints[1])
	}
	if one.ServedModel != "" || len(declared.ServedModel) != 0 {
		t.Error("learning changed what config says")
	}

	// What is listed no more is gone; what config declares stays.
	one.Replica.SetModels(nil)
	two.Replica.SetModels([]string{"tiny"})
	c.Relearn()
	if want := []string{"b", "big", "tiny"}; !slices.Equal(c.Names(), want) {
		t.Errorf("names %q, want %q", c.Names(), want)
	}
	if got, want := where(c.Resolve("big")), []string{"gpu1:8000 big"}; !slices.Equal(got, want) {
		t.Errorf("big is at %q, want %q", got, want)
	}
}

// One replica is one candidate of a model, however many of the model's names
// its engine lists and whether config names it, too: twice in the list it would
// get twice its share, and a retry would meet it again.
func TestReplicaJoinsAModelOnce(t *testing.T) {
	f := fleet.New(nil)
	e := endpoint(t, f, "gpu1:8000")
	learning := endpoint(t, f, "gpu1:8000")
	other := endpoint(t, f, "gpu2:8000")
	c := build(t, []*Model{{Name: "a", Aliases: []string{"b", "c"}, Endpoints: []*Endpoint{e}}}, []*Endpoint{learning, other})
	learning.Replica.SetModels([]string{"a", "b"})
	other.Replica.SetModels([]string{"c", "b"})
	c.Relearn()
	if got, want := where(c.Resolve("a")), []string{"gpu1:8000 a", "gpu2:8000 c"}; !slices.Equal(got, want) {
		t.Errorf("a is at %q, want %q", got, want)
	}
}

// A request keeps the view that it resolved its model in, whatever is learned
// meanwhile.
func TestRelearnLeavesOldViewsAlone(t *testing.T) {
	f := fleet.New(nil)
	one, two := endpoint(t, f, "gpu2:8000"), endpoint(t, f, "gpu3:8000")
	declared := append(make([]*Endpoint, 0, 8), endpoint(t, f, "gpu1:8000"))
	c := build(t, []*Model{{Name: "a", Endpoints: declared}}, []*Endpoint{one, two})
	one.Replica.SetModels([]string{"a"})
	c.Relearn()
	view := c.Resolve("a")
	one.Replica.SetModels(nil)
	two.Replica.SetModels([]string{"a"})
	c.Relearn()
	if got, want := where(view), []string{"gpu1:8000 a", "gpu2:8000 a"}; !slices.Equal(got, want) {
		t.Errorf("the old view has become %q, want %q", got, want)
	}
	if got, want := where(c.Resolve("a")), []string{"gpu1:8000 a", "gpu3:8000 a"}; !slices.Equal(got, want) {
		t.Errorf("the new view is %q, want %q", got, want)
	}
}

func TestRelearnKeepsSequences(t *testing.T) {
	f := fleet.New(nil)
	e := endpoint(t, f, "gpu1:8000")
	c := build(t, []*Model{{Name: "declared"}}, []*Endpoint{e})
	e.Replica.SetModels([]string{"learned"})
	c.Relearn()
	for _, name := range []string{"declared", "learned"} {
		m := c.Resolve(name)
		for want := range uint64(3) {
			if up := m.Upcoming(); up != want {
				t.Errorf("%s: upcoming %d, want %d", name, up, want)
			}
			if got := m.Next(); got != want {
				t.Errorf("%s: next %d, want %d", name, got, want)
			}
		}
		e.Replica.SetModels([]string{"learned", "more"})
		c.Relearn()
		again := c.Resolve(name)
		if again == m {
			t.Errorf("%s: the old view was changed in place", name)
		}
		if got := again.Next(); got != 3 {
			t.Errorf("%s: next %d after a relearn, want 3", name, got)
		}
		// A request that still holds the old view counts on.
		if got := m.Next(); got != 4 {
			t.Errorf("%s: next %d of the old view, want 4", name, got)
		}
	}
}

func TestIncomplete(t *testing.T) {
	f := fleet.New(nil)
	declared := build(t, []*Model{{Name: "a", Endpoints: []*Endpoint{endpoint(t, f, "gpu0:8000")}}}, nil)
	if declared.Incomplete() {
		t.Error("a catalog that learns nothing waits for something")
	}
	one, two := endpoint(t, f, "gpu1:8000"), endpoint(t, f, "gpu2:8000")
	c := build(t, nil, []*Endpoint{one, two})
	if !c.Incomplete() {
		t.Error("nobody was asked, and it is complete")
	}
	one.Replica.SetModels([]string{"a"})
	if !c.Incomplete() {
		t.Error("one was asked, and it is complete")
	}
	two.Replica.Health.ConnectFailed("refused")
	if c.Incomplete() {
		t.Error("it waits for a replica that is down")
	}
	two.Replica.Health.Probed("")
	two.Replica.Health.Probed("")
	if !c.Incomplete() {
		t.Error("the replica is back and may have a model")
	}
	two.Replica.SetModels(nil)
	if c.Incomplete() {
		t.Error("all were asked, and it is incomplete")
	}
}

// Requests resolve while replicas come and go: every view that one sees is
// whole.
func TestRelearnConcurrently(t *testing.T) {
	f := fleet.New(nil)
	one, two := endpoint(t, f, "gpu1:8000"), endpoint(t, f, "gpu2:8000")
	c := build(t, []*Model{{Name: "always", Endpoints: []*Endpoint{endpoint(t, f, "gpu0:8000")}}}, []*Endpoint{one, two})
	var wg sync.WaitGroup
	for worker := range 2 {
		wg.Go(func() {
			e := []*Endpoint{one, two}[worker]
			for i := range 200 {
				e.Replica.SetModels([]string{"always", "shared", strings.Repeat("x", 1+i%3)})
				c.Relearn()
			}
		})
		wg.Go(func() {
			for range 200 {
				m := c.Resolve("always")
				if m == nil || len(m.Endpoints) < 1 || len(m.Endpoints) > 3 {
					t.Errorf("always is %+v", m)
					return
				}
				m.Next()
				for _, m := range c.Models() {
					if c.Resolve(m.Name) == nil && m.Name == "always" || len(m.Endpoints) == 0 {
						t.Errorf("model %q without endpoints", m.Name)
					}
				}
				c.Names()
				c.Incomplete()
			}
		})
	}
	wg.Wait()
	if got := c.Resolve("always").Next(); got != 400 {
		t.Errorf("sequence %d, want 400", got)
	}
}

// Whatever engines list: every name resolves to the model that has it, no
// replica serves a model twice, and a second Relearn changes nothing.
func TestCatalogProperties(t *testing.T) {
	f := fleet.New(nil)
	learning := []*Endpoint{endpoint(t, f, "gpu1:8000"), endpoint(t, f, "gpu2:8000"), endpoint(t, f, "gpu3:8000")}
	rapid.Check(t, func(t *rapid.T) {
		own := *learning[0] // config names one of them, too
		c, err := New([]*Model{{Name: "a", Aliases: []string{"b"}, Endpoints: []*Endpoint{&own}}, {Name: "c"}}, learning, Model{})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range learning {
			e.Replica.SetModels(rapid.SliceOfDistinct(rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}), rapid.ID[string]).Draw(t, "list"))
		}
		c.Relearn()
		seen := make(map[string]bool)
		for _, m := range c.Models() {
			replicas := make(map[*fleet.Replica]bool)
			for _, e := range m.Endpoints {
				if replicas[e.Replica] {
					t.Fatalf("%s serves %s twice", e.Replica.ID, m.Name)
				}
				replicas[e.Replica] = true
			}
			for _, name := range append([]string{m.Name}, m.Aliases...) {
				if seen[name] || c.Resolve(name) != m {
					t.Fatalf("name %q", name)
				}
				seen[name] = true
			}
		}
		if got := c.Names(); len(got) != len(seen) || !slices.IsSorted(got) {
			t.Fatalf("names %q, seen %v", got, seen)
		}
		for _, e := range learning {
			list, _ := e.Replica.Models()
			for _, name := range list {
				if m := c.Resolve(name); m == nil || !slices.ContainsFunc(m.Endpoints, func(o *Endpoint) bool { return o.Replica == e.Replica }) {
					t.Fatalf("%q is not served by %s, which lists it", name, e.Replica.ID)
				}
			}
		}
		before := c.Names()
		c.Relearn()
		if !slices.Equal(before, c.Names()) {
			t.Fatalf("names %q, then %q", before, c.Names())
		}
	})
}
