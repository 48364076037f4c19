package schedule

import "testing"

func adapter(a Adapter) func(*Replica) { return func(r *Replica) { r.Adapter = a } }

func TestLoRA(t *testing.T) {
	for _, c := range []struct {
		name     string
		replicas []*Replica
		want     []float64
	}{
		{
			"loaded, room, unknown, no room",
			each(known(adapter(AdapterLoaded)), known(adapter(AdapterRoom)), known(adapter(AdapterUnknown)), known(adapter(AdapterNoRoom))),
			values(1, 0.5, 0.25, 0),
		},
		{"no adapter", each(known(), known()), values(0, 0)},
		{"a hot one spreads", each(known(adapter(AdapterLoaded), inflight(12)), known(adapter(AdapterRoom), inflight(2))), values(0.5, 0.5)},
		{"but not for a few", each(known(adapter(AdapterLoaded), inflight(1)), known(adapter(AdapterRoom))), values(1, 0.5)},
	} {
		t.Run(c.name, func(t *testing.T) { expect(t, score(LoRA{}, prefixed(0), c.replicas...), c.want...) })
	}
}
