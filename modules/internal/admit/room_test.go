package admit

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/llmgw/llmgw/modules/internal/fleet"
	"github.com/llmgw/llmgw/modules/schedule"
)

// TestRoom says how replicas would take a request of a band.
func TestRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(3, 0, time.Second)
		for i, e := range s.model.Endpoints {
			e.Slots = []int{8, 8, 0}[i] // nobody knows of the last
		}
		lease := func(band string, sequences int64) *Lease {
			r := s.request(band, "a")
			r.Sequences = sequences
			l, err := s.gate.Acquire(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		bronze, wide, platinum := lease("bronze", 1), lease("silver", 4), lease("platinum", 1)
		bronze.closed = s.model.Endpoints[1:2]
		const now, queue, none = schedule.RoomNow, schedule.RoomQueue, schedule.RoomNone
		for _, tt := range []struct {
			lease *Lease
			on    int
			total float64
			want  schedule.Room
		}{
			{nil, 0, 7, now},
			{nil, 0, 8, queue},
			{nil, 0, 80, queue},
			{nil, 2, 80, now},
			{bronze, 0, 7, now},
			{bronze, 0, 8, queue}, // one waits: 0.25 of four
			{bronze, 0, 9, none},  // two
			{bronze, 1, 0, none},  // it is left to others
			{platinum, 0, 11, queue},
			{platinum, 0, 12, none},
			{wide, 0, 4, now},
			{wide, 0, 5, queue},
			{wide, 0, 7, none}, // three wait: 0.75
			{wide, 2, 80, now},
		} {
			e := s.model.Endpoints[tt.on]
			var slots []fleet.Slot
			for range int(tt.total) {
				slot, _ := e.Replica.Take(-1, 1)
				slots = append(slots, slot)
			}
			load := e.Replica.Load(time.Now(), e.Slots).Plus(tt.total - e.Replica.Load(time.Now(), e.Slots).Total) // without the leases
			if got := tt.lease.Room(e, load, 4); got != tt.want {
				t.Errorf("%+v: %v", tt, got)
			}
			for i := range slots {
				slots[i].Release()
			}
		}
		for _, l := range []*Lease{bronze, wide, platinum} {
			l.Release(1)
		}
	})
}
