//go:build !race

package exchange

import "testing"

// With the race detector sync.Pool drops what it is given at random, so that
// this can be counted without it only.
func TestDecide64Allocations(t *testing.T) {
	w := newWorld64(t)
	w.Picked = nil
	x := picker(t, w)
	x.Pick()
	x.again()
	n := testing.AllocsPerRun(200, func() {
		x.Pick()
		x.again()
	})
	if n > 2 {
		t.Errorf("a decision allocates %v times, 2 are promised", n)
	}
}
