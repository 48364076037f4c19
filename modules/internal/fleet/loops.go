package fleet

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
)

// Loops runs one loop per replica for as long as any attached config names it. T says how a replica is
// to be treated. Safe for concurrent use.
type Loops[T any] struct {
	replica func(*T) *Replica
	run     func(ctx context.Context, target *atomic.Pointer[T])

	mu       sync.Mutex
	attached []*[]T
	loops    map[*Replica]*loop[T]
	ending   map[*Replica]chan struct{} // the loops that were told to end last, until they have
	running  sync.WaitGroup
}

type loop[T any] struct {
	target atomic.Pointer[T]
	cancel context.CancelFunc
	ended  chan struct{}
}

// NewLoops returns none. replica says which one a target is for; run is a loop, which returns when its
// context ends, and reads its target anew each round, since a later config may say it differently.
func NewLoops[T any](replica func(*T) *Replica, run func(ctx context.Context, target *atomic.Pointer[T])) *Loops[T] {
	return &Loops[T]{replica: replica, run: run, loops: make(map[*Replica]*loop[T]), ending: make(map[*Replica]chan struct{})}
}

// Attach starts the loops of the targets, one per replica, until the returned detach is called; calling
// that again does nothing. Where several attached sets name one replica, the last attached says how.
func (l *Loops[T]) Attach(targets []T) (detach func()) {
	own := &targets
	l.mu.Lock()
	defer l.mu.Unlock()
	l.attached = append(l.attached, own)
	l.apply()
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.attached = slices.DeleteFunc(l.attached, func(a *[]T) bool { return a == own })
		l.apply()
	})
}

// Wait blocks until no loop runs any more. Call it after the last detach.
func (l *Loops[T]) Wait() { l.running.Wait() }

// apply brings the loops in line with what is attached. It needs mu.
func (l *Loops[T]) apply() {
	want := make(map[*Replica]*T)
	for _, targets := range l.attached {
		for i := range *targets {
			want[l.replica(&(*targets)[i])] = &(*targets)[i]
		}
	}
	for r, o := range l.loops {
		if want[r] == nil {
			o.cancel()
			delete(l.loops, r)
			l.ending[r] = o.ended
		}
	}
	for r, t := range want {
		o := l.loops[r]
		if o == nil {
			o = l.begin(r, t)
			l.loops[r] = o
		}
		o.target.Store(t)
	}
}

// begin starts the loop of a replica, as soon as the one before has ended. It needs mu.
func (l *Loops[T]) begin(r *Replica, t *T) *loop[T] {
	ctx, cancel := context.WithCancel(context.Background())
	o := &loop[T]{cancel: cancel, ended: make(chan struct{})}
	o.target.Store(t)
	before := l.ending[r]
	l.running.Go(func() {
		if before != nil {
			<-before
		}
		l.run(ctx, &o.target)
		close(o.ended)
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.ending[r] == o.ended {
			delete(l.ending, r)
		}
	})
	return o
}
