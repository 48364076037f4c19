package exchange

import (
	"math"
	"testing"
)

// TestPopularCountsOnce: a request that is sent again to another replica is one request that begins so.
func TestPopularCountsOnce(t *testing.T) {
	w := remembering(t, "gpu1:8000", "gpu2:8000", "gpu3:8000")
	system := words(3000)
	const requests = 6
	for range requests {
		x := w.ask(t, chatOf("m", system, words(300)))
		mustPick(t, x)
		mustPick(t, x)
		x.End()
	}
	b := newBeginning()
	defer b.free()
	x := w.ask(t, chatOf("m", system, words(300)))
	b.read(w.Runtime, x.Model, x.prompt())
	b.look(w.Runtime)
	// The first one did not know that others would begin so.
	n := float64(requests - 1)
	want := (n - 2 - math.Sqrt(n*(1-n/requests))) / requests
	if got := w.Prefix.Popular.Share(b.model, b.popular.Block, w.Now()); b.popular.Bytes < 2500 || math.Abs(got-want) > 0.01 {
		t.Errorf("of %d requests a share of %v begins with these %d bytes, want %v", requests, got, b.popular.Bytes, want)
	}
	x.End()
	w.atRest(t)
}
