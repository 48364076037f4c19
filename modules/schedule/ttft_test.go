package schedule

import "testing"

// TestTTFT: what a replica has to read before an answer can begin, the request's own prompt included, as
// far as it does not have that.
func TestTTFT(t *testing.T) {
	for _, c := range []struct {
		name     string
		replicas []*Replica
		want     []float64
	}{
		{"what is to be read", each(known(prefill(0)), known(prefill(1000)), known(prefill(3000))), values(0.75, 0.5, 0)},
		{"what is cached", each(known(prefill(900), cached(0.9)), known(cached(0))), values(0, 0)},
		{"and where more is to be read", each(known(prefill(3100), cached(0.9)), known(cached(0))), values(0, 0.6875)},
		{"an unknown cache has nothing", each(known(cached(nan)), known(cached(1))), values(0, 1)},
		{"twice the weight reads twice as fast", each(known(prefill(3000), weight(2)), known(prefill(3000))), values(0.5, 0)},
		{"however many they are", each(known(prefill(0), inflight(50)), known(prefill(1000))), values(0.5, 0)},
	} {
		t.Run(c.name, func(t *testing.T) {
			expect(t, score(TTFT{}, &Request{PromptTokens: 1000}, c.replicas...), c.want...)
		})
	}
	session := &Request{PromptTokens: 1000, HasSession: true}
	expect(t, score(TTFT{}, session, known(prefill(5000), cached(nan)), known(cached(nan))), 0, 0)
	expect(t, score(TTFT{}, session, known(prefill(3000), cached(nan)), known(cached(0))), 0, 0.75)
}
