package schedule

import "testing"

func cached(v Gauge) func(*Replica)   { return func(r *Replica) { r.Cached = v } }
func held(v int64) func(*Replica)     { return func(r *Replica) { r.Held = v } }
func capacity(v Gauge) func(*Replica) { return func(r *Replica) { r.BatchCapacity = v } }

// prefixed is a request with the default rules, for a prompt of 1,000 bytes of which so many are as
// in others.
func prefixed(shared float64) *Request {
	req := request()
	req.Prefix = PrefixRules{Threshold: 0.3, BalanceAbs: 16, BalanceRel: 1.5}
	req.PromptBytes, req.PromptTokens, req.OutputTokens, req.Shared = 1000, 250, 250, shared
	return req
}

func TestPrefix(t *testing.T) {
	for _, c := range []struct {
		name     string
		shared   float64
		replicas []*Replica
		want     []float64
	}{
		{"what is held is worth its share", 0, each(known(cached(0.9)), known(cached(0.5)), known(cached(0))), values(0.9, 0.5, 0)},
		{"unknown is nothing", 0, each(known(cached(0.9)), known(cached(nan))), values(0.9, 0)},
		{"and what is below the threshold", 0, each(known(cached(0.29)), known(cached(0.3))), values(0, 0.3)},
		{"load far from equal counts alone", 0, each(known(cached(0.9), inflight(30)), known(inflight(13))), values(0, 0)},
		{"but by more than 16", 0, each(known(cached(0.9), inflight(16)), known(inflight(0))), values(0.9, 0)},
		{"and by more than half as much again", 0, each(known(cached(0.9), inflight(60)), known(inflight(40))), values(0.9, 0)},
		{"a replica of four times the weight may have four times as much", 0, each(known(cached(0.9), inflight(80), weight(4)), known(inflight(20))), values(0.9, 0)},
		{"what all share is worth nothing where there is a crowd", 0.5, each(known(cached(0.5), inflight(12)), known(cached(0.5), inflight(2))), values(0, 0.5)},
		{"of more than others share it is", 0.5, each(known(cached(0.6), inflight(12)), known(cached(0.5), inflight(2))), values(0.6, 0.5)},
		{"nor where the batch is full, if another has room", 0.5, each(known(cached(0.5), inflight(8), capacity(8)), known(cached(0.5), inflight(7), capacity(8))), values(0, 0.5)},
		{"if none has it is", 0.5, each(known(cached(0.5), inflight(9), capacity(8)), known(cached(0.5), inflight(8), capacity(8))), values(0.5, 0.5)},
		{"one replica is no crowd", 0.5, each(known(cached(0.5), inflight(12), held(9000))), values(0.5)},
		{"a few are no crowd", 0.5, each(known(cached(0.5), inflight(1)), known(cached(0.5), inflight(0))), values(0.5, 0.5)},
		{"a cache with much more in it is one", 0.5, each(known(cached(0.5), held(9000)), known(cached(0.5), held(4000))), values(0, 0.5)},
		{"but for the prompt itself", 0.5, each(known(cached(0.5), held(1500)), known(cached(0.5), held(500))), values(0.5, 0.5)},
		{"of twice the weight it may hold twice as much", 0.5, each(known(cached(0.5), held(9000), inflight(4), weight(2)), known(cached(0.5), held(4500), inflight(2))), values(0.5, 0.5)},
	} {
		t.Run(c.name, func(t *testing.T) {
			expect(t, score(Prefix{}, prefixed(c.shared), c.replicas...), c.want...)
		})
	}
}

// TestSpreading: what many prompts begin with goes to one more replica while it is on too few.
func TestSpreading(t *testing.T) {
	shares := func(r *Replica) { r.Cached, r.Shares = 0.5, true }
	for _, c := range []struct {
		name               string
		replicas           []*Replica
		prefix, ttft, cost []float64
	}{
		{"who lacks it scores", each(known(shares), known(cached(0))), values(0, 0.5), values(0, 0), values(0, 0)},
		{"also who was sent it and has not got it yet", each(known(shares), known(cached(0), func(r *Replica) { r.Shares = true }), known(cached(0))), values(0, 0, 0.5), values(0, 0, 0), values(0, 0, 0)},
		{"not who is busy", each(known(shares), known(cached(0), inflight(4)), known(cached(0))), values(0, 0, 0.5), values(0, 0, 0), values(0, 0, 0)},
		{"nor who has a queue", each(known(shares), known(cached(0), waiting(1))), values(0.5, 0), values(0.5, 0), values(0.25, 0)},
		{"not if all have it", each(known(shares), known(shares)), values(0.5, 0.5), values(0, 0), values(0, 0)},
		{"nor if somebody has more of the prompt", each(known(shares, cached(0.6)), known(cached(0))), values(0.6, 0), values(0.6, 0), values(0.3, 0)},
	} {
		t.Run(c.name, func(t *testing.T) {
			req := prefixed(0.5)
			req.Spread = true
			expect(t, score(Prefix{}, req, c.replicas...), c.prefix...)
			expect(t, score(TTFT{}, req, c.replicas...), c.ttft...)
			expect(t, score(Cost{}, req, c.replicas...), c.cost...)
		})
	}
	req := prefixed(0.2) // below the threshold it is not worth it
	req.Spread = true
	expect(t, score(Prefix{}, req, each(known(func(r *Replica) { r.Cached, r.Shares = 0.2, true }), known(cached(0)))...), 0, 0)
}

func TestSpread(t *testing.T) {
	for _, c := range []struct {
		name     string
		replicas []*Replica
		want     []float64
	}{
		{"the emptiest cache is best", each(known(cached(0), held(1000)), known(cached(0), held(250)), known(cached(0))), values(0, 0.75, 1)},
		{"by weight", each(known(cached(0), held(1000), weight(4)), known(cached(0), held(1000))), values(0.75, 0)},
		{"where nothing is held all are alike", each(known(cached(0)), known(cached(0))), values(0, 0)},
		{"where nobody keeps count, too", each(known(cached(nan), held(5)), known(cached(nan))), values(0, 0)},
		{"a queue attracts nothing", each(known(cached(0), held(1000)), known(cached(0), waiting(1))), values(0, 0)},
		{"nor does one that is busier", each(known(cached(0), held(1000), inflight(2)), known(cached(0), inflight(5))), values(0, 0)},
		{"a bit is no matter", each(known(cached(0), held(1000), inflight(2)), known(cached(0), inflight(4))), values(0, 1)},
		{"of unequal load it does not count", each(known(cached(0), held(1000), inflight(40)), known(cached(0))), values(0, 0)},
	} {
		t.Run(c.name, func(t *testing.T) {
			expect(t, score(Spread{}, prefixed(0), c.replicas...), c.want...)
		})
	}
}

func TestCost(t *testing.T) {
	expect(t, score(Cost{}, prefixed(0), each(known(cached(1)), known(cached(0)), known(cached(0.5)))...), 0.5, 0, 0.25)
	expect(t, score(Cost{}, prefixed(0), each(known(cached(1), inflight(40)), known(cached(0)))...), 0, 0)
	expect(t, score(Cost{}, prefixed(0), each(known(weight(2)), known())...), 0.5, 0)
}

func TestDecideCache(t *testing.T) {
	for _, c := range []struct {
		cached, best Gauge
		want         CacheDecision
	}{
		{nan, nan, CacheNoTree},
		{0, 0, CacheMiss},
		{0.2, 0.2, CacheMiss},
		{0.3, 0.9, CacheHit},
		{0.9, 0.9, CacheHit},
		{0.1, 0.3, CacheOverride},
		{nan, 0.3, CacheOverride},
	} {
		if got := DecideCache(prefixed(0), c.cached, c.best); got != c.want {
			t.Errorf("%v where the most is %v: %s, want %s", c.cached, c.best, got, c.want)
		}
	}
	if got := DecideCache(&Request{}, 0, 0); got != CacheMiss {
		t.Errorf("with a threshold of 0 nothing is a %s", got)
	}
}
