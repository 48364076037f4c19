package fleet

import (
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/llmgw/llmgw/modules/schedule"
)

// clock is a clock that a test sets.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func newClock() *clock {
	return &clock{at: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

func mustURL(t *testing.T, address string) *url.URL {
	t.Helper()
	u, err := ParseURL(address)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// hold returns a replica of a fleet of its own.
func hold(t *testing.T, c *clock) *Replica {
	t.Helper()
	r, release := New(c.now).Hold(mustURL(t, "gpu1:8000"))
	t.Cleanup(release)
	return r
}

func ids(f *Fleet) []string {
	var list []string
	for _, r := range f.Replicas() {
		list = append(list, r.ID)
	}
	return list
}

func TestHoldAndRelease(t *testing.T) {
	f := New(nil)
	a, releaseA := f.Hold(mustURL(t, "gpu2:8000"))
	again, releaseAgain := f.Hold(mustURL(t, "http://GPU2:8000/"))
	if a != again {
		t.Error("one address, two replicas")
	}
	b, releaseB := f.Hold(mustURL(t, "https://gpu1:8000/a"))
	if a == b {
		t.Error("two addresses, one replica")
	}
	if want := []string{"gpu2:8000", "https://gpu1:8000/a"}; !slices.Equal(ids(f), want) {
		t.Errorf("replicas %q, want %q", ids(f), want)
	}
	if f.Find("gpu2:8000") != a || f.Find("https://gpu1:8000/a") != b || f.Find("gpu1:8000") != nil {
		t.Error("Find found something else")
	}
	releaseA()
	releaseA() // does nothing
	if f.Find("gpu2:8000") != a {
		t.Error("a replica that is still held is gone")
	}
	releaseAgain()
	releaseB()
	if got := ids(f); got != nil {
		t.Errorf("left %q", got)
	}
}

// A worker leaves and comes back under the same name while requests run: they
// count down on what they were counted on.
func TestR02_ReplicaThatLeavesAndRejoins(t *testing.T) {
	f := New(nil)
	old, release := f.Hold(mustURL(t, "gpu1:8000"))
	var slots []Slot
	for range 5 {
		s, _ := old.Take(-1, 100)
		slots = append(slots, s)
	}
	release()
	if f.Find("gpu1:8000") != nil {
		t.Fatal("the replica is still there")
	}
	fresh, release := f.Hold(mustURL(t, "gpu1:8000"))
	defer release()
	if fresh == old || fresh.Inflight() != 0 {
		t.Fatalf("the replica that came back has %d in flight", fresh.Inflight())
	}
	one, _ := fresh.Take(0, 100)
	for i := range slots {
		slots[i].Release()
		if fresh.Inflight() != 1 {
			t.Fatalf("an old request's end left %d in flight, want 1", fresh.Inflight())
		}
	}
	one.Release()
	if fresh.Inflight() != 0 || fresh.PendingTokens() != 0 || old.Inflight() != 0 || old.PendingTokens() != 0 {
		t.Errorf("at rest %d and %d tokens, the old one %d and %d",
			fresh.Inflight(), fresh.PendingTokens(), old.Inflight(), old.PendingTokens())
	}
}

// A config that takes over holds the replica before the old one lets go, and so
// finds the counts.
func TestHoldAcrossAReload(t *testing.T) {
	f := New(nil)
	r, releaseOld := f.Hold(mustURL(t, "gpu1:8000"))
	s, _ := r.Take(0, 7)
	next, releaseNew := f.Hold(mustURL(t, "gpu1:8000"))
	releaseOld()
	if next != r || next.Inflight() != 1 || f.Find("gpu1:8000") != r {
		t.Error("the reload lost the replica")
	}
	s.Release()
	releaseNew()
	if len(f.Replicas()) != 0 {
		t.Error("the last release left the replica")
	}
}

func TestFleetConcurrently(t *testing.T) {
	f := New(nil)
	addresses := []*url.URL{mustURL(t, "gpu1:8000"), mustURL(t, "gpu2:8000"), mustURL(t, "gpu3:8000")}
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for i := range 200 {
				r, release := f.Hold(addresses[(worker+i)%len(addresses)])
				slot, ok := r.Take(-1, 1)
				if !ok || r.Inflight() < 1 {
					t.Error("a request that was taken does not count")
				}
				f.Replicas()
				f.Find(r.ID)
				slot.Release()
				release()
			}
		})
	}
	wg.Wait()
	if got := ids(f); got != nil {
		t.Errorf("left %q", got)
	}
}

func TestReplicaFillsACandidate(t *testing.T) {
	c := newClock()
	r, release := New(c.now).Hold(mustURL(t, "https://gpu1:8000/a"))
	defer release()
	r.SetStats(&Stats{At: c.now(), Waiting: 3, Running: 8, KVUsage: 0.25})
	r.Completed()
	slot, _ := r.Take(0, 500)
	defer slot.Release()
	// What is config's and the request's is left alone, all else is written.
	got := schedule.Replica{
		Pool: "pool", Priority: 7, Weight: 2, Tried: true,
		Stale: true, State: schedule.Cooling, ID: "left over",
	}
	r.Fill(&got, c.now(), 0, 0)
	want := schedule.Replica{
		ID: "https://gpu1:8000/a", Hash: got.Hash,
		Pool: "pool", Priority: 7, Weight: 2, Tried: true,
		// One more was sent since three waited.
		Waiting: 4, Running: 8, KVUsage: 0.25, BatchCapacity: 8, DrainRate: 1,
		Inflight: 1, PendingTokens: 500,
	}
	if got != want {
		t.Errorf("filled\n%+v, want\n%+v", got, want)
	}
	if got.Hash == 0 {
		t.Error("no hash")
	}
}

func TestDraining(t *testing.T) {
	r := hold(t, newClock())
	if r.Draining() || r.State() != schedule.Ready {
		t.Fatal("a new replica is not ready")
	}
	r.SetDraining(true)
	if !r.Draining() || r.State() != schedule.Draining {
		t.Errorf("state %s", r.State())
	}
	r.Health.ConnectFailed("refused")
	if r.State() != schedule.Draining {
		t.Errorf("a draining replica that is down too is %s", r.State())
	}
	r.SetDraining(false)
	if r.State() != schedule.Down {
		t.Errorf("state %s", r.State())
	}
}

func TestModels(t *testing.T) {
	r := hold(t, newClock())
	if _, asked := r.Models(); asked {
		t.Error("asked before it was")
	}
	for i, c := range []struct {
		names   []string
		changed bool
	}{
		{nil, true}, // it was asked and serves none
		{[]string{}, false},
		{[]string{"a"}, true},
		{[]string{"a"}, false},
		{[]string{"a", "b"}, true},
		{[]string{"a", "c"}, true},
		{[]string{"a"}, true},
	} {
		if got := r.SetModels(c.names); got != c.changed {
			t.Errorf("step %d: changed %v, want %v", i, got, c.changed)
		}
		if names, asked := r.Models(); !asked || !slices.Equal(names, c.names) {
			t.Errorf("step %d: models %q, %v", i, names, asked)
		}
	}
}
