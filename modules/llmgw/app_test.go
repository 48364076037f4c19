package llmgw

import (
	"sync"
	"testing"
)

// TestHolds: what exchanges need is given back once, with the last hold, and a
// request that comes later gets none.
func TestHolds(t *testing.T) {
	released := 0
	a := &App{release: []func(){func() { released++ }}}
	a.holds.Store(1)
	if !a.hold() {
		t.Fatal("no hold while the config lives")
	}
	a.letGo() // the config
	if released != 0 {
		t.Fatal("released under an open exchange")
	}
	a.letGo() // the exchange
	if released != 1 {
		t.Fatalf("released %d times", released)
	}
	if a.hold() {
		t.Error("a hold on what is gone")
	}
	if released != 1 {
		t.Errorf("released %d times", released)
	}
}

func TestHoldsConcurrently(t *testing.T) {
	released := 0
	a := &App{release: []func(){func() { released++ }}}
	a.holds.Store(1)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				if a.hold() {
					a.letGo()
				}
			}
		})
	}
	a.letGo()
	wg.Wait()
	if released != 1 || a.holds.Load() != 0 {
		t.Errorf("released %d times, %d holds", released, a.holds.Load())
	}
}
