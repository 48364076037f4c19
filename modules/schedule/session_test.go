package schedule

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// home returns the index of the replica that a session goes to, -1 for none.
func home(req *Request, replicas []*Replica) int {
	return slices.Index(score(Session{}, req, replicas...), 1)
}

// sessionOf returns a request of the session.
func sessionOf(session uint64) *Request {
	req := request()
	req.Session, req.HasSession = session, true
	return req
}

// idle returns n idle replicas of equal weight.
func idle(n int) []*Replica {
	replicas := make([]*Replica, n)
	for i := range replicas {
		replicas[i] = known(hash(mix(uint64(1000 + i))))
	}
	return replicas
}

func TestSessionScoresOneReplica(t *testing.T) {
	replicas := idle(8)
	for session := range uint64(100) {
		scores := score(Session{}, sessionOf(mix(session)), replicas...)
		ones := 0
		for _, s := range scores {
			switch s {
			case 1:
				ones++
			case 0:
			default:
				t.Fatalf("scores %v", scores)
			}
		}
		if ones != 1 {
			t.Fatalf("session %d has %d homes", session, ones)
		}
	}
}

// TestSessionWherePromptsAreRemembered: it counts for less there.
func TestSessionWherePromptsAreRemembered(t *testing.T) {
	replicas := idle(3)
	req := sessionOf(7)
	want := []float64{0, 0, 0}
	want[home(req, replicas)] = 1.0 / 3
	for _, r := range replicas {
		r.Cached = 0
	}
	expect(t, score(Session{}, req, replicas...), want...)
}

func TestSessionWithoutSession(t *testing.T) {
	expect(t, score(Session{}, request(), idle(3)...), 0, 0, 0)
}

// The same session goes to the same replica, however often and in whatever
// order the replicas come.
func TestSessionIsStable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		req := sessionOf(rapid.Uint64().Draw(t, "session"))
		replicas := idle(rapid.IntRange(1, 20).Draw(t, "replicas"))
		first := replicas[home(req, replicas)]
		shuffled := rapid.Permutation(replicas).Draw(t, "order")
		if again := shuffled[home(req, shuffled)]; again != first {
			t.Fatal("another order of the replicas moved the session")
		}
	})
}

func TestSessionsSpread(t *testing.T) {
	const sessions, n = 8000, 8
	counts := make([]int, n)
	replicas := idle(n)
	for session := range uint64(sessions) {
		counts[home(sessionOf(mix(session)), replicas)]++
	}
	// The standard deviation is about 30: five of them on either side.
	for i, c := range counts {
		if c < sessions/n-150 || c > sessions/n+150 {
			t.Errorf("replica %d has %d of %d sessions: %v", i, c, sessions, counts)
		}
	}
}

// A replica that leaves moves only its own sessions, and one that joins takes
// sessions for itself alone.
func TestSessionChurnMovesOnlyItsOwn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		replicas := idle(rapid.IntRange(2, 16).Draw(t, "replicas"))
		gone := rapid.IntRange(0, len(replicas)-1).Draw(t, "gone")
		rest := slices.Delete(slices.Clone(replicas), gone, gone+1)
		for _, session := range rapid.SliceOfN(rapid.Uint64(), 50, 50).Draw(t, "sessions") {
			req := sessionOf(session)
			before, after := replicas[home(req, replicas)], rest[home(req, rest)]
			if before != replicas[gone] && before != after {
				t.Fatal("a session moved though its replica stayed")
			}
		}
	})
}

// For whatever is in flight: the replica chosen is within its bound after it
// takes the request, and one is always chosen.
func TestSessionLoadIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		replicas := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) *Replica {
			return known(
				hash(rapid.Uint64().Draw(t, "hash")),
				inflight(rapid.OneOf(rapid.IntRange(0, 4), rapid.IntRange(0, 100000)).Draw(t, "inflight")),
				weight(rapid.Float64Range(0.01, 100).Draw(t, "weight")),
			)
		}), 1, 20).Draw(t, "replicas")
		req := sessionOf(rapid.Uint64().Draw(t, "session"))
		req.SessionLoad = rapid.Float64Range(1, 10).Draw(t, "load")
		chosen := home(req, replicas)
		if chosen < 0 {
			t.Fatal("no replica was chosen")
		}
		total, weights := 0.0, 0.0
		for _, r := range replicas {
			total += float64(r.Inflight)
			weights += r.Weight
		}
		r := replicas[chosen]
		if bound := math.Ceil(req.SessionLoad * (total + 1) * r.Weight / weights); float64(r.Inflight+1) > bound {
			t.Fatalf("%d in flight after the pick, the bound is %v", r.Inflight+1, bound)
		}
	})
}

// Only a load below 1, which config refuses, can leave a session without a
// replica; it must not end in a panic.
func TestSessionLoadBelowOne(t *testing.T) {
	replicas := idle(2)
	replicas[0].Inflight, replicas[1].Inflight = 5, 5
	req := sessionOf(1)
	req.SessionLoad = 0.5
	expect(t, score(Session{}, req, replicas...), 0, 0)
}

// A hot session spills over from its full replica to the next in its rank, and
// returns when there is room again.
func TestSessionSpillsOverAndReturns(t *testing.T) {
	replicas := idle(4)
	req := sessionOf(42)
	first := home(req, replicas)
	replicas[first].Inflight = 10
	second := home(req, replicas)
	if second == first {
		t.Fatal("10 of 10 requests are on one of four replicas, and it takes the next")
	}
	for i, r := range replicas {
		if i != first {
			r.Inflight = 10
		}
	}
	if back := home(req, replicas); back != first {
		t.Errorf("all are equally loaded, and the session is on %d instead of %d", back, first)
	}
}

// Replaying a skewed load by the scorer alone never takes a replica further
// above the mean than the bound allows.
func TestSessionSimulatedSkew(t *testing.T) {
	replicas := idle(5)
	for i := range 500 {
		// Two of three requests belong to one session.
		session := uint64(7)
		if i%3 == 0 {
			session = mix(uint64(i))
		}
		replicas[home(sessionOf(session), replicas)].Inflight++
	}
	for i, r := range replicas {
		if r.Inflight > int(math.Ceil(1.25*500/5)) {
			t.Errorf("replica %d has %d of 500", i, r.Inflight)
		}
	}
}
