package catalog

import (
	"slices"
	"testing"

	"github.com/llmgw/llmgw/modules/internal/fleet"
)

// TestServedAdapters: each engine is asked for an adapter in its own way, be it learned or declared.
func TestServedAdapters(t *testing.T) {
	f := fleet.New(nil)
	one, two, declared := endpoint(t, f, "gpu1:8000"), endpoint(t, f, "gpu2:8000"), endpoint(t, f, "gpu3:8000")
	declared.ServedModel = "sql"
	c := build(t, []*Model{{Name: "text-to-sql", Aliases: []string{"sql"}, Endpoints: []*Endpoint{declared}}}, []*Endpoint{one, two})
	for _, e := range []*Endpoint{one, two} {
		e.Replica.SetModels([]string{"base", "sql"})
	}
	c.Relearn()
	for _, e := range []*Endpoint{one, declared} { // known since
		e.Replica.SetAdapters(e.Replica.Listing(), []fleet.Adapter{{Name: "sql", Served: "base:sql"}})
	}
	two.Replica.SetAdapters(two.Replica.Listing(), []fleet.Adapter{{Name: "sql"}})
	for name, want := range map[string][]string{
		"sql":  {"gpu3:8000 base:sql", "gpu1:8000 base:sql", "gpu2:8000 sql"},
		"base": {"gpu1:8000 base", "gpu2:8000 base"},
	} {
		if got := where(c.Resolve(name)); !slices.Equal(got, want) {
			t.Errorf("%s is at %q, want %q", name, got, want)
		}
	}
}
