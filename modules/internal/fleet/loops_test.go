package fleet

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// TestLoopsLeaveNothing: whoever attaches and detaches meanwhile, each replica has one loop at most, and
// after the last detach there is none.
func TestLoopsLeaveNothing(t *testing.T) {
	f := New(nil)
	var targets []*Replica
	for i := range 3 {
		u, err := ParseURL(fmt.Sprintf("gpu%d:8000", i))
		if err != nil {
			t.Fatal(err)
		}
		r, release := f.Hold(u)
		defer release()
		targets = append(targets, r)
	}
	var begun, running atomic.Int64
	each := make(map[*Replica]*atomic.Int64)
	for _, r := range targets {
		each[r] = new(atomic.Int64)
	}
	l := NewLoops(func(r **Replica) *Replica { return *r }, func(ctx context.Context, target *atomic.Pointer[*Replica]) {
		begun.Add(1)
		running.Add(1)
		defer running.Add(-1)
		own := each[*target.Load()]
		if n := own.Add(1); n != 1 {
			t.Errorf("a replica has %d loops", n)
		}
		defer own.Add(-1)
		<-ctx.Done()
		runtime.Gosched() // it takes a while to end
		if *target.Load() == nil {
			t.Error("a loop has lost its target")
		}
	})
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for i := range 50 {
				detach := l.Attach(targets[(worker+i)%3:])
				detach()
				detach()
			}
		})
	}
	wg.Wait()
	l.Wait()
	if len(l.loops)+len(l.attached)+len(l.ending) != 0 || running.Load() != 0 || begun.Load() == 0 {
		t.Errorf("%d loops and %d attachments are left, %d of %d run", len(l.loops), len(l.attached), running.Load(), begun.Load())
	}
}
