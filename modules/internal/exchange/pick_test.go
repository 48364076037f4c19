package exchange

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/llmgw/llmgw/modules/internal/fleet"
	"github.com/llmgw/llmgw/modules/internal/tenant"
	"github.com/llmgw/llmgw/modules/schedule"
)

// fourReplicas are equal ones.
var fourReplicas = []string{"gpu1:8000", "gpu2:8000", "gpu3:8000", "gpu4:8000"}

func TestPickCountsFromTheStart(t *testing.T) {
	w := newWorld(t, "gpu1:8000")
	x := w.ask(t, chatBody)
	if x.Endpoint() != nil || x.Attempts() != 0 || x.Pool() != "" {
		t.Error("something was picked before the pick")
	}
	e := mustPick(t, x)
	if x.Endpoint() != e || x.Attempts() != 1 || x.Pool() != "default" || x.Err() != nil {
		t.Errorf("endpoint %v, %d attempts, pool %q, %v", x.Endpoint(), x.Attempts(), x.Pool(), x.Err())
	}
	// A quarter of the prompt's bytes and the 10 tokens that it may answer with.
	want := int64(x.Fields.PromptBytes/4 + 10)
	if e.Replica.Inflight() != 1 || e.Replica.PendingTokens() != want {
		t.Errorf("%d in flight, %d tokens, want 1 and %d", e.Replica.Inflight(), e.Replica.PendingTokens(), want)
	}
	x.End()
	w.atRest(t)
	if !slices.Equal(w.failures, []string{""}) {
		t.Errorf("Picked was told %q", w.failures)
	}
}

// 40 requests at the same moment, before any has an answer: they spread evenly.
func TestR03_SimultaneousPicksSpread(t *testing.T) {
	w := newWorld(t, fourReplicas...)
	const n = 40
	exchanges := make([]*Exchange, n)
	for i := range exchanges {
		exchanges[i] = w.ask(t, chatBody)
	}
	start := make(chan struct{})
	var wg sync.WaitGroup
	for _, x := range exchanges {
		wg.Go(func() {
			<-start
			if x.Pick() == nil {
				t.Error(x.Err())
			}
		})
	}
	close(start)
	wg.Wait()
	for _, r := range w.fleet.Replicas() {
		if r.Inflight() < n/4-2 || r.Inflight() > n/4+2 {
			t.Errorf("%s has %d of %d", r.ID, r.Inflight(), n)
		}
	}
	for _, x := range exchanges {
		x.End()
	}
	w.atRest(t)
}

// overtaken is a picker during which another request goes to the replica that
// it picks, so many times.
type overtaken struct {
	fleet *fleet.Fleet
	times int
	calls int
}

func (o *overtaken) Pick(req *schedule.Request, replicas []*schedule.Replica, totals []float64) int {
	i := schedule.MaxScore{}.Pick(req, replicas, totals)
	if o.calls++; o.calls <= o.times {
		o.fleet.Find(replicas[i].ID).Take(-1, 0)
	}
	return i
}

// A decision that another request has overtaken is made anew, on what is true
// now; one that always is stands in the end.
func TestR03_OvertakenDecisionIsMadeAnew(t *testing.T) {
	for _, c := range []struct{ times, calls int }{
		{0, 1}, {1, 2}, {3, 4}, {1 << 20, maxConflicts + 1},
	} {
		w := newWorld(t, fourReplicas...)
		picker := &overtaken{fleet: w.fleet, times: c.times}
		w.Profiles["chat"].Picker = picker
		x := w.ask(t, chatBody)
		e := mustPick(t, x)
		if picker.calls != c.calls {
			t.Errorf("overtaken %d times: %d decisions, want %d", c.times, picker.calls, c.calls)
		}
		if c.times < len(fourReplicas) && e.Replica.Inflight() != 1 {
			t.Errorf("overtaken %d times: sent to a replica with %d others", c.times, e.Replica.Inflight()-1)
		}
	}
}

// A retry goes to another replica and gives the one before back; when there is
// none left, the cause of the last attempt is what the client is told.
func TestRetriesExcludeTheTried(t *testing.T) {
	w := newWorld(t, fourReplicas...)
	w.Catalog.Resolve("m").Reliability.Retries = 10
	x := w.ask(t, chatBody)
	var picked []string
	for i := range fourReplicas {
		e := mustPick(t, x)
		if slices.Contains(picked, e.Replica.ID) {
			t.Fatalf("%s again, after %q", e.Replica.ID, picked)
		}
		picked = append(picked, e.Replica.ID)
		total := 0
		for _, r := range w.fleet.Replicas() {
			total += r.Inflight()
		}
		if total != 1 || e.Replica.Inflight() != 1 || x.Attempts() != i+1 {
			t.Errorf("attempt %d: %d in flight in all, %d attempts", i+1, total, x.Attempts())
		}
		x.Fail(Fail(ErrReplica, "cause %d", i+1))
	}
	if x.Pick() != nil {
		t.Fatal("a fifth replica of four")
	}
	if err := x.Err(); !errors.Is(err, ErrReplica) || Answer(err).Message != "cause 4" {
		t.Errorf("error %v", err)
	}
	if x.Endpoint() != nil || x.Attempts() != 4 {
		t.Errorf("endpoint %v, %d attempts", x.Endpoint(), x.Attempts())
	}
	w.lock(func() {
		if want := []string{"", "", "", "", "replica_failed"}; !slices.Equal(w.failures, want) {
			t.Errorf("Picked was told %q, want %q", w.failures, want)
		}
	})
	x.End()
	w.atRest(t)
}

// A pick that works clears the cause of the attempt before it.
func TestPickClearsTheCause(t *testing.T) {
	w := newWorld(t, fourReplicas...)
	x := w.ask(t, chatBody)
	mustPick(t, x)
	x.Fail(Fail(ErrReplica, "reset"))
	mustPick(t, x)
	if x.Err() != nil {
		t.Errorf("error %v", x.Err())
	}
}

func TestRetriesAreLimited(t *testing.T) {
	for _, retries := range []int{0, 1, 2} {
		w := newWorld(t, fourReplicas...)
		w.Catalog.Resolve("m").Reliability.Retries = retries
		x := w.ask(t, chatBody)
		for range retries + 1 {
			mustPick(t, x)
			x.Fail(Fail(ErrReplica, "refused"))
		}
		if x.Pick() != nil || !errors.Is(x.Err(), ErrReplica) {
			t.Errorf("%d retries: one more, or %v", retries, x.Err())
		}
		x.End()
		w.atRest(t)
	}
}

// A proxy may ask again without saying why the attempt failed. There is an
// answer then, too.
func TestRetryWithoutACause(t *testing.T) {
	w := newWorld(t, "gpu1:8000")
	x := w.ask(t, chatBody)
	mustPick(t, x)
	if x.Pick() != nil || !errors.Is(x.Err(), ErrUnavailable) {
		t.Errorf("the only replica again, or %v", x.Err())
	}
	w = newWorld(t, fourReplicas...)
	w.Catalog.Resolve("m").Reliability.Retries = 0
	x = w.ask(t, chatBody)
	mustPick(t, x)
	if x.Pick() != nil || !errors.Is(x.Err(), ErrReplica) || Answer(x.Err()).Status != 502 {
		t.Errorf("more attempts than there may be, or %v", x.Err())
	}
}

func TestNoReplica(t *testing.T) {
	w := newWorld(t, fourReplicas...)
	list := w.fleet.Replicas()
	list[0].SetDraining(true)
	for _, r := range list[1:] {
		r.Health.ConnectFailed("connect: refused")
	}
	x := w.ask(t, chatBody)
	if x.Pick() != nil {
		t.Fatal("a replica that takes no work was picked")
	}
	e := Answer(x.Err())
	if e.Status != 503 || e.RetryAfter != retryUnavailable {
		t.Errorf("answer %+v", e)
	}
	if want := "no replica of the model `m` is available now: 3 down, 1 draining"; e.Message != want {
		t.Errorf("message %q, want %q", e.Message, want)
	}
	if strings.Contains(e.Message, "gpu") {
		t.Error("the message names replicas")
	}
	w = newWorld(t)
	x = w.ask(t, chatBody)
	if x.Pick() != nil || Answer(x.Err()).Message != "the model `m` has no replica" {
		t.Errorf("error %v", x.Err())
	}
}

func TestPinnedReplica(t *testing.T) {
	w := newWorld(t, fourReplicas...)
	busy := w.fleet.Find("gpu3:8000")
	for range 100 {
		slot, _ := busy.Take(-1, 1)
		defer slot.Release()
	}
	pick := func(pin string) *Exchange {
		x := w.ask(t, chatBody)
		x.Wishes.Replica = pin
		mustPick(t, x)
		return x
	}
	for range 10 {
		if x := pick("gpu3:8000"); x.Endpoint().Replica != busy {
			t.Fatalf("pinned to gpu3:8000, sent to %s", x.Endpoint().Replica.ID)
		}
	}
	// It falls through when that one is not ready, or not there.
	busy.SetDraining(true)
	for _, pin := range []string{"gpu3:8000", "gpu9:8000", "GPU3:8000"} {
		if x := pick(pin); x.Endpoint().Replica == busy {
			t.Errorf("%q: sent to a replica that is draining", pin)
		}
	}
	busy.SetDraining(false)
	busy.Health.ConnectFailed("connect: refused")
	if x := pick("gpu3:8000"); x.Endpoint().Replica == busy {
		t.Error("sent to a replica that is down")
	}
	// So does a retry.
	x := pick("gpu1:8000")
	if e := mustPick(t, x); e.Replica.ID == "gpu1:8000" {
		t.Error("a retry went back to the pinned replica")
	}
}

// The requests of a session follow it to one replica, and those of others do
// not.
func TestSessionAffinity(t *testing.T) {
	w := newWorld(t, fourReplicas...)
	homes := make(map[string]string)
	for i := range 200 {
		session := fmt.Sprintf("s-%d", i%20)
		x := w.ask(t, `{"model":"m","user":"`+session+`","messages":[]}`)
		id := mustPick(t, x).Replica.ID
		if home := homes[session]; home != "" && home != id {
			t.Fatalf("%s moved from %s to %s", session, home, id)
		}
		homes[session] = id
		x.End()
	}
	used := make(map[string]bool)
	for _, id := range homes {
		used[id] = true
	}
	if len(used) < 3 {
		t.Errorf("20 sessions are on %d of 4 replicas", len(used))
	}
}

func TestRoundRobinSequence(t *testing.T) {
	w := newWorld(t, fourReplicas...)
	w.DefaultProfile = "debug"
	var got []string
	for range 6 {
		x := w.ask(t, chatBody)
		got = append(got, mustPick(t, x).Replica.ID)
		x.End()
	}
	if want := append(slices.Clone(fourReplicas), fourReplicas[:2]...); !slices.Equal(got, want) {
		t.Errorf("order %q, want %q", got, want)
	}
}

// A snapshot is filled into scratch space that other models have used: nothing
// of theirs is left in it.
func TestSnapshotsOfModelsOfOtherSizes(t *testing.T) {
	w := newWorld(t, fourReplicas...)
	big := *w.Catalog.Resolve("m")
	small := big
	small.Endpoints = big.Endpoints[:1]
	for i := range 20 {
		x := w.ask(t, chatBody)
		m := &big
		if i%2 == 1 {
			m = &small
		}
		x.Model, x.serving = m, m
		e := mustPick(t, x)
		if !slices.Contains(m.Endpoints, e) {
			t.Fatal("an endpoint of another model")
		}
		if i%2 == 0 {
			x.Fail(Fail(ErrReplica, "refused"))
			if again := mustPick(t, x); again == e {
				t.Fatal("the tried one again")
			}
		}
		x.End()
	}
	w.atRest(t)
}

// Requests come and go on few replicas so fast that decisions are overtaken;
// every one is made in the end, and all counts return to 0.
func TestPicksUnderConflict(t *testing.T) {
	w := newWorld(t, "gpu1:8000", "gpu2:8000")
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for i := range 100 {
				x := w.ask(t, chatBody)
				if worker%2 == 0 {
					x.Key = &tenant.Key{Debug: true}
					x.Wishes.Replica = "gpu1:8000"
				}
				e := x.Pick()
				if e == nil {
					t.Error(x.Err())
				} else if e.Replica.Inflight() < 1 {
					t.Error("a request that was picked does not count")
				}
				if i%3 == 0 {
					x.Fail(Fail(ErrReplica, "refused"))
					x.Pick()
				}
				x.End()
			}
		})
	}
	wg.Wait()
	w.atRest(t)
}

// A replica that was given the request, and is removed meanwhile, is counted
// down all the same.
func TestReplicaRemovedUnderARequest(t *testing.T) {
	w := newWorld(t, "gpu1:8000")
	x := w.ask(t, chatBody)
	r := mustPick(t, x).Replica
	r.SetDraining(true)
	if r.State() != schedule.Draining || r.Inflight() != 1 {
		t.Errorf("%s with %d in flight", r.State(), r.Inflight())
	}
	x.End()
	if r.Inflight() != 0 {
		t.Errorf("%d in flight", r.Inflight())
	}
}

// TestSlowConnectIsNotAlwaysTheReplicasFault: it goes on elsewhere either way.
func TestSlowConnectIsNotAlwaysTheReplicasFault(t *testing.T) {
	for _, blame := range []bool{true, false} {
		w := newWorld(t, fourReplicas...)
		x := w.ask(t, chatBody)
		r := mustPick(t, x).Replica
		if !x.ConnectFailed(os.ErrDeadlineExceeded, blame) {
			t.Error("no other replica is tried")
		}
		if down := r.State() == schedule.Down; down != blame {
			t.Errorf("blamed %t, down %t", blame, down)
		}
	}
}
