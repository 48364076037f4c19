package pipeline

import (
	"math"
	"slices"
	"testing"

	"github.com/llmgw/llmgw/modules/schedule"
)

var unknown = schedule.Unknown

// chat is the shipped profile of that name.
func chat() *Profile {
	return &Profile{
		Name: "chat",
		Scorers: []WeightedScorer{
			{Name: "session", Weight: 3, Scorer: schedule.Session{}},
			{Name: "queue", Weight: 1, Scorer: schedule.Queue{}},
			{Name: "kv", Weight: 1, Scorer: schedule.KV{}},
			{Name: "inflight", Weight: 1, Scorer: schedule.Inflight{}},
		},
		PickerName: "p2c", Picker: schedule.P2C{},
	}
}

// best is a profile that takes the replica with the fewest waiting.
func best(filters ...NamedFilter) *Profile {
	return &Profile{
		Name:       "best",
		Filters:    filters,
		Scorers:    []WeightedScorer{{Name: "queue", Weight: 1, Scorer: schedule.Queue{}}},
		PickerName: "max_score", Picker: schedule.MaxScore{},
	}
}

func request() *schedule.Request {
	return &schedule.Request{TargetWaiting: 4, KVCeiling: 0.9, SessionLoad: 1.25, Random: 0x9e3779b97f4a7c15}
}

// replica returns an idle candidate.
func replica(id, pool string, change ...func(*schedule.Replica)) schedule.Replica {
	r := schedule.Replica{
		ID: id, Pool: pool, Priority: 100, Weight: 1,
		BatchCapacity: unknown, DrainRate: unknown,
	}
	for _, f := range change {
		f(&r)
	}
	return r
}

func waiting(v schedule.Gauge) func(*schedule.Replica) {
	return func(r *schedule.Replica) { r.Waiting = v }
}

func priority(v int) func(*schedule.Replica) {
	return func(r *schedule.Replica) { r.Priority = v }
}

func state(v schedule.State) func(*schedule.Replica) {
	return func(r *schedule.Replica) { r.State = v }
}

func tried(r *schedule.Replica)  { r.Tried = true }
func stale(r *schedule.Replica)  { r.Stale = true }
func kvFull(r *schedule.Replica) { r.KVUsage = 0.99 }

// decide runs one decision over the candidates. The test frees it.
func decide(t *testing.T, p *Profile, candidates ...schedule.Replica) *Decision {
	t.Helper()
	d := NewDecision()
	t.Cleanup(d.Free)
	d.Candidates = append(d.Candidates, candidates...)
	found := d.Decide(p, request())
	if found != (d.Pick >= 0) {
		t.Fatalf("Decide returned %v with pick %d", found, d.Pick)
	}
	return d
}

// picked returns the ID of the pick, "" for none.
func picked(d *Decision) string {
	if d.Pick < 0 {
		return ""
	}
	return d.Candidates[d.Pick].ID
}

// only keeps the replica of that ID and drops the others for a reason.
type only string

func (o only) Filter(_ *schedule.Request, r *schedule.Replica) string {
	if r.ID == string(o) {
		return ""
	}
	return "not_" + string(o)
}

// TestAdapter: those that have the request's adapter are preferred to those it would have to be brought to,
// unless they are crowded, or have no room.
func TestAdapter(t *testing.T) {
	has := func(r *schedule.Replica) { r.Adapter = schedule.AdapterLoaded }
	lacks := func(r *schedule.Replica) { r.Adapter, r.Absent = schedule.AdapterRoom, true }
	busy := func(n int) func(*schedule.Replica) { return func(r *schedule.Replica) { r.Inflight = n } }
	queue := func(r *schedule.Replica) { r.Room = schedule.RoomQueue }
	both := func(f ...func(*schedule.Replica)) func(*schedule.Replica) {
		return func(r *schedule.Replica) {
			for _, f := range f {
				f(r)
			}
		}
	}
	none := func(*schedule.Replica) {}
	for _, c := range []struct {
		name string
		are  []func(*schedule.Replica)
		want []string
	}{
		{"for no adapter", []func(*schedule.Replica){none, none, none}, []string{"", "", ""}},
		{"one has it", []func(*schedule.Replica){lacks, both(has, busy(2)), lacks}, []string{ReasonAbsent, "", ReasonAbsent}},
		{"nobody has it", []func(*schedule.Replica){lacks, lacks, lacks}, []string{"", "", ""}},
		{"one has it, and too much to do", []func(*schedule.Replica){both(lacks, busy(1)), both(has, busy(9)), lacks}, []string{"", "", ""}},
		{"of two one has too much to do", []func(*schedule.Replica){both(has, busy(1)), both(has, busy(9)), lacks}, []string{"", "", ReasonAbsent}},
		{"one has it, and a queue", []func(*schedule.Replica){lacks, both(has, queue), lacks}, []string{"", ReasonRoom, ""}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := NewDecision()
			defer d.Free()
			for i, set := range c.are {
				r := schedule.Replica{ID: string(rune('a' + i)), Weight: 1, BatchCapacity: schedule.Unknown}
				set(&r)
				d.Candidates = append(d.Candidates, r)
			}
			if !d.Decide(&Profile{Picker: schedule.MaxScore{}}, new(schedule.Request)) || !slices.Equal(d.Rejected, c.want) {
				t.Errorf("rejected %q, want %q", d.Rejected, c.want)
			}
		})
	}
}

// TestRoom: of the replicas of the pool that was chosen those take part that have most room.
func TestRoom(t *testing.T) {
	room := func(v schedule.Room) func(*schedule.Replica) {
		return func(r *schedule.Replica) { r.Room = v }
	}
	const now, queue, none = schedule.RoomNow, schedule.RoomQueue, schedule.RoomNone
	for _, c := range []struct {
		rooms [4]schedule.Room // the last one is in a pool of lower priority
		want  []string
	}{
		{[4]schedule.Room{now, now, now, now}, []string{"", "", "", ReasonPool}},
		{[4]schedule.Room{queue, now, now, now}, []string{ReasonRoom, "", "", ReasonPool}},
		{[4]schedule.Room{queue, now, none, now}, []string{ReasonRoom, "", ReasonRoom, ReasonPool}},
		{[4]schedule.Room{queue, queue, none, now}, []string{"", "", ReasonRoom, ReasonPool}},
		{[4]schedule.Room{none, none, none, now}, []string{ReasonPool, ReasonPool, ReasonPool, ""}},
		{[4]schedule.Room{none, none, none, none}, []string{"", "", "", ReasonPool}},
	} {
		d := decide(t, chat(), replica("a", "high", priority(20), room(c.rooms[0])), replica("b", "high", priority(20), room(c.rooms[1])),
			replica("c", "high", priority(20), room(c.rooms[2])), replica("d", "low", priority(10), room(c.rooms[3])))
		if !slices.Equal(d.Rejected, c.want) {
			t.Errorf("%v: %q, want %q", c.rooms, d.Rejected, c.want)
		}
	}
}

// TestPoolsByP90: a pool is as saturated as the fullest of its replicas but a tenth.
func TestPoolsByP90(t *testing.T) {
	for p90, want := range map[bool]string{false: "high", true: "low"} {
		d := NewDecision()
		d.Candidates = append(d.Candidates, replica("a", "low", priority(10)),
			replica("b", "high", priority(20)), replica("c", "high", priority(20)), replica("d", "high", priority(20), waiting(8)))
		req := request()
		req.P90 = p90
		if !d.Decide(best(), req) || d.Pool != want || d.Spilled != p90 {
			t.Errorf("p90 %v: pool %q at %v, spilled %v", p90, d.Pool, d.Saturation, d.Spilled)
		}
		d.Free()
	}
}

func TestPools(t *testing.T) {
	for _, c := range []struct {
		name       string
		candidates []schedule.Replica
		pick, pool string
		saturation float64
		spilled    bool
	}{
		{
			name: "the highest priority, wherever it stands",
			candidates: []schedule.Replica{
				replica("a", "low", priority(10)),
				replica("b", "high", priority(20)),
				replica("c", "mid", priority(15)),
			},
			pick: "b", pool: "high",
		},
		{
			name: "not saturated is good enough, however idle the others are",
			candidates: []schedule.Replica{
				replica("a", "low", priority(10)),
				replica("b", "high", priority(20), waiting(3.9)),
			},
			pick: "b", pool: "high", saturation: 3.9 / 4,
		},
		{
			name: "spills over to the next",
			candidates: []schedule.Replica{
				replica("a", "low", priority(10)),
				replica("b", "high", priority(20), waiting(4)),
				replica("c", "mid", priority(15)),
			},
			pick: "c", pool: "mid", spilled: true,
		},
		{
			name: "exactly full is saturated, wherever it stands",
			candidates: []schedule.Replica{
				replica("a", "low", priority(10)),
				replica("b", "high", priority(20), waiting(4)),
			},
			pick: "a", pool: "low", spilled: true,
		},
		{
			name: "spills over two saturated ones",
			candidates: []schedule.Replica{
				replica("b", "high", priority(20), waiting(9)),
				replica("c", "mid", priority(15), kvFull),
				replica("a", "low", priority(10), waiting(1)),
			},
			pick: "a", pool: "low", saturation: 0.25, spilled: true,
		},
		{
			name: "all saturated: the least",
			candidates: []schedule.Replica{
				replica("a", "high", priority(20), waiting(40)),
				replica("b", "low", priority(10), waiting(8)),
				replica("c", "mid", priority(15), waiting(20)),
			},
			pick: "b", pool: "low", saturation: 2, spilled: true,
		},
		{
			name: "all saturated, and the least is the first",
			candidates: []schedule.Replica{
				replica("a", "high", priority(20), waiting(8)),
				replica("b", "low", priority(10), waiting(40)),
			},
			pick: "a", pool: "high", saturation: 2,
		},
		{
			name: "all saturated alike: the priority",
			candidates: []schedule.Replica{
				replica("b", "low", priority(10), waiting(8)),
				replica("a", "high", priority(20), waiting(8)),
			},
			pick: "a", pool: "high", saturation: 2,
		},
		{
			name: "a pool's saturation is the mean",
			candidates: []schedule.Replica{
				replica("a", "high", priority(20), waiting(6)),
				replica("b", "low", priority(10)),
				replica("c", "high", priority(20), waiting(1)),
			},
			pick: "c", pool: "high", saturation: 7. / 8,
		},
		{
			name: "only eligible replicas count for it",
			candidates: []schedule.Replica{
				replica("a", "high", priority(20), waiting(6)),
				replica("b", "low", priority(10)),
				replica("c", "high", priority(20), waiting(1), state(schedule.Draining)),
				replica("d", "high", priority(20), waiting(1), tried),
			},
			pick: "b", pool: "low", spilled: true,
		},
		{
			name: "a pool that is down is no spill",
			candidates: []schedule.Replica{
				replica("a", "high", priority(20), state(schedule.Down)),
				replica("b", "low", priority(10)),
			},
			pick: "b", pool: "low",
		},
		{
			name: "equal priority: both pools take part",
			candidates: []schedule.Replica{
				replica("a", "one", waiting(1)),
				replica("b", "two"),
			},
			pick: "b", pool: "two",
		},
		{
			name: "equal priority: the next when it is",
			candidates: []schedule.Replica{
				replica("a", "one", waiting(4)),
				replica("b", "two"),
			},
			pick: "b", pool: "two",
		},
		{
			name: "a pool has the priority of its highest replica",
			candidates: []schedule.Replica{
				replica("a", "one", priority(10)),
				replica("b", "two", priority(1), waiting(1)),
				replica("c", "two", priority(30)),
			},
			pick: "c", pool: "two", saturation: 0.125,
		},
		{
			name: "nothing known is not saturated",
			candidates: []schedule.Replica{
				replica("a", "one", priority(20), func(r *schedule.Replica) {
					r.Waiting, r.Running, r.KVUsage, r.Inflight = unknown, unknown, unknown, 1000
				}),
				replica("b", "two", priority(10)),
			},
			pick: "a", pool: "one",
		},
		{
			name: "one pool",
			candidates: []schedule.Replica{
				replica("a", "one", waiting(2)),
				replica("b", "one", waiting(1)),
			},
			pick: "b", pool: "one", saturation: 0.375,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := decide(t, best(), c.candidates...)
			if picked(d) != c.pick || d.Pool != c.pool || d.Spilled != c.spilled {
				t.Errorf("picked %q of %q, spilled %v; want %q of %q, spilled %v",
					picked(d), d.Pool, d.Spilled, c.pick, c.pool, c.spilled)
			}
			if !(math.Abs(d.Saturation-c.saturation) < 1e-9) {
				t.Errorf("saturation %v, want %v", d.Saturation, c.saturation)
			}
		})
	}
}

func TestEveryDropHasItsReason(t *testing.T) {
	d := decide(t, best(NamedFilter{"only", only("g")}),
		replica("a", "one", state(schedule.Draining)),
		replica("b", "one", state(schedule.Down)),
		replica("c", "one", state(schedule.Cooling)),
		replica("d", "one", tried),
		replica("e", "one", tried, state(schedule.Down)),
		replica("f", "one"),
		replica("g", "one"),
	)
	want := []string{"draining", "down", "cooling", "tried", "down", "not_g", ""}
	if !slices.Equal(d.Rejected, want) {
		t.Errorf("reasons %q, want %q", d.Rejected, want)
	}
	if picked(d) != "g" {
		t.Errorf("picked %q", picked(d))
	}
	counts := d.Reasons()
	if len(counts) != 5 || counts["down"] != 2 || counts["tried"] != 1 || counts["not_g"] != 1 {
		t.Errorf("counts %v", counts)
	}
}

func TestReplicasOfOtherPoolsAreMarked(t *testing.T) {
	d := decide(t, best(),
		replica("a", "one", priority(1)),
		replica("b", "two", priority(2)),
		replica("c", "one", priority(1), tried),
		replica("d", "two", priority(2)),
		replica("e", "three", priority(1)),
	)
	want := []string{"other_pool", "", "tried", "", "other_pool"}
	if !slices.Equal(d.Rejected, want) {
		t.Errorf("reasons %q, want %q", d.Rejected, want)
	}
}

func TestFiltersRunInOrder(t *testing.T) {
	d := decide(t, best(NamedFilter{"first", only("x")}, NamedFilter{"second", only("y")}), replica("x", "one"), replica("y", "one"))
	if want := []string{"not_y", "not_x"}; !slices.Equal(d.Rejected, want) {
		t.Errorf("reasons %q, want %q", d.Rejected, want)
	}
	if d.Pick != -1 || d.Pool != "" {
		t.Errorf("picked %d of %q although nothing is left", d.Pick, d.Pool)
	}
}

func TestNoCandidates(t *testing.T) {
	d := decide(t, chat())
	if d.Pick != -1 || len(d.Rejected) != 0 || len(d.Reasons()) != 0 {
		t.Errorf("pick %d, reasons %v", d.Pick, d.Rejected)
	}
}
