package admit

import (
	"testing"
	"testing/synctest"
)

// TestIsolation: batch work never ruins chat, and hardly costs throughput.
func TestIsolation(t *testing.T) {
	run := func(bronze int, past bool) (l load) {
		synctest.Test(t, func(t *testing.T) { l = isolation(t, bronze, past) })
		return l
	}
	idle, without, with := run(0, false), run(500, true), run(500, false)
	t.Logf("idle %v, without admission %v (%d done), with it %v (%d done)", idle.p99, without.p99, without.done, with.p99, with.done)
	if limit := idle.p99 * 12 / 10; with.p99 > limit {
		t.Errorf("platinum's 99th percentile is %v beside bronze, want at most %v", with.p99, limit)
	}
	if least := without.done * 88 / 100; with.done < least {
		t.Errorf("%d requests were done, want at least %d", with.done, least)
	}
	if without.p99 < 2*idle.p99 {
		t.Errorf("without admission it is %v: this load proves nothing", without.p99)
	}
}
