package zone

import (
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/llmgw/llmgw/modules/schedule"
)

func TestScore(t *testing.T) {
	ids := []string{"10.1.0.5:8000", "10.2.0.5:8000", "https://10.1.0.6:8000", "rack7-gpu1:8000", "110.1.0.5:8000"}
	replicas := make([]*schedule.Replica, len(ids))
	for i, id := range ids {
		replicas[i] = &schedule.Replica{ID: id}
	}
	for _, c := range []struct {
		near []string
		want []float64
	}{
		{[]string{"10.1."}, []float64{1, 0, 1, 0, 0}},
		{[]string{"rack7-", "10.2."}, []float64{0, 1, 0, 1, 0}},
		{[]string{"rack8-"}, []float64{0, 0, 0, 0, 0}},
	} {
		// What is in scores before must not matter.
		scores := slices.Repeat([]float64{0.5}, len(ids))
		(&Zone{Near: c.near}).Score(new(schedule.Request), replicas, scores)
		if !slices.Equal(scores, c.want) {
			t.Errorf("near %q: scores %v, want %v", c.near, scores, c.want)
		}
	}
}

func TestScoreAllocatesNothing(t *testing.T) {
	z, replicas, scores := &Zone{Near: []string{"10.1."}}, []*schedule.Replica{{ID: "10.1.0.5:8000"}}, make([]float64, 1)
	if n := testing.AllocsPerRun(100, func() { z.Score(nil, replicas, scores) }); n != 0 {
		t.Errorf("%v allocations per decision", n)
	}
}

func TestConfig(t *testing.T) {
	for _, c := range []struct {
		text string
		near []string // nil: it must be refused
		want string   // what the error says
	}{
		{"zone 10.1.", []string{"10.1."}, ""},
		{"zone 10.1. rack7-", []string{"10.1.", "rack7-"}, ""},
		{"zone", nil, "argument"},
		{`zone ""`, nil, "empty"},
		{"zone 10.1. {\n port 1\n}", nil, "port"},
	} {
		z := new(Zone)
		err := z.UnmarshalCaddyfile(caddyfile.NewTestDispenser(c.text))
		if err == nil {
			err = z.Validate()
		}
		switch {
		case c.near == nil && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: error %v, want one with %q", c.text, err, c.want)
		case c.near != nil && (err != nil || !slices.Equal(z.Near, c.near)):
			t.Errorf("%s: near %q, error %v", c.text, z.Near, err)
		}
	}
}

// TestModule loads the scorer as the gateway does, from its JSON.
func TestModule(t *testing.T) {
	ctx, cancel := caddy.NewContext(caddy.Context{Context: t.Context()})
	defer cancel()
	v, err := ctx.LoadModuleByID("llmgw.scorers.zone", []byte(`{"near": ["10.1."]}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := v.(schedule.Scorer); !ok {
		t.Errorf("%T is not a schedule.Scorer", v)
	}
	for _, config := range []string{`{}`, `{"near": [""]}`, `{"nera": ["10.1."]}`} {
		if _, err := ctx.LoadModuleByID("llmgw.scorers.zone", []byte(config)); err == nil {
			t.Errorf("%s was accepted", config)
		}
	}
}
