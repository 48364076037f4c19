package exchange

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/internal/fleet"
)

// Watch holds one attempt to its time limits: until the first token, between
// two tokens, and in all; and gives it up when its replica is gone. It ends the
// attempt with the limit as the cause. The zero Watch watches nothing. First, Reading and Read are for
// the goroutine that reads the answer; Cause and Stop for any.
type Watch struct {
	x      *Exchange
	end    func(cause error)
	limits *catalog.Reliability
	// replica is where the attempt goes; nil where nobody counts it.
	replica *fleet.Replica
	last    atomic.Int64 // when the replica last gave something, Unix ns
	first   atomic.Bool  // the first token, or the answer, has come
	reads   atomic.Bool  // the replica is being waited for, and not the client
	gives   bool         // up what a replica that is gone has not begun

	mu      sync.Mutex
	timer   *time.Timer
	stopped bool
	cause   error
}

// The limits, as what they end an attempt with. Each is also what the client is
// told.
var (
	errFirstToken = Fail(ErrTimeout, "the replica gave no token in time")
	errIdleToken  = Fail(ErrTimeout, "the replica stopped giving tokens")
	errTotal      = Fail(ErrTimeout, "the request took longer than the gateway allows")
	errGone       = Fail(ErrReplica, "the replica is gone: nobody listens there any more")
)

// goneAfter is for how long nobody may listen at a replica's address before the
// requests are given up to which it has not said a word. vLLM keeps their
// connections open for as long as they care to wait when it is told to end.
const goneAfter = 5 * time.Second

// Watch starts w over an attempt that began at the given time. end, which must
// not block, is called with the limit that passed. The caller must call Stop.
func (x *Exchange) Watch(w *Watch, at time.Time, end func(cause error)) {
	w.x, w.end, w.limits = x, end, &x.serving.Reliability
	w.last.Store(at.UnixNano())
	if e := x.Endpoint(); e != nil {
		w.replica = e.Replica
	}
	l := w.limits
	w.gives = l.ResendAfterSend && !x.resent
	w.mu.Lock() // the limit may pass at once
	defer w.mu.Unlock()
	// The shortest of the limits: it begins anew when it finds that none has
	// passed, so nothing has to be done when the first token comes.
	w.timer = time.AfterFunc(min(goneAfter, l.FirstToken, l.IdleToken, l.Total-at.Sub(x.Start)), w.expire)
}

// Cause returns the limit that passed, or nil.
func (w *Watch) Cause() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cause
}

// IsTotal reports whether the limit that passed is the total one: the replica is
// not to blame for it.
func IsTotal(cause error) bool { return errors.Is(cause, errTotal) }

// First notes that the first token, or the answer, has come.
func (w *Watch) First(at time.Time) {
	w.last.Store(at.UnixNano())
	w.first.Store(true)
}

// Reading notes that the replica is waited for from now on, and that all that it
// gave before has gone to the client: how long that took is not its doing. Before
// the first token only that token counts, so comments do not keep an attempt
// alive.
func (w *Watch) Reading() {
	if w.first.Load() {
		now := w.x.rt.Now()
		w.last.Store(now.UnixNano())
		if w.replica != nil {
			w.replica.Progressed(now)
		}
	}
	w.reads.Store(true)
}

// Read notes that something has come, or the end.
func (w *Watch) Read() { w.reads.Store(false) }

// Stop ends the watch. A limit that has passed is kept.
func (w *Watch) Stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped = true; w.timer != nil {
		w.timer.Stop()
	}
}

func (w *Watch) expire() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return
	}
	now, l := w.x.rt.Now(), w.limits
	limit, cause, step := l.FirstToken, errFirstToken, min(l.IdleToken, goneAfter)
	silence := now.Sub(time.Unix(0, w.last.Load()))
	switch {
	case w.first.Load():
		limit, cause, step = l.IdleToken, errIdleToken, l.IdleToken
		if !w.reads.Load() {
			silence = 0
		}
	case w.gives && w.replica != nil && w.replica.Health.RefusedFor() >= goneAfter:
		limit, cause = 0, errGone
	case silence >= l.IdleToken && w.x.Fields.Stream:
		// Any other answer says nothing until it is complete.
		w.x.silent(l.IdleToken)
	}
	total := l.Total - now.Sub(w.x.Start)
	if total <= 0 {
		limit, cause = 0, errTotal
	}
	if left := min(limit-silence, total); left > 0 {
		// Never in steps that are longer than the shorter limit: the first token
		// may come meanwhile.
		w.timer.Reset(min(left, step))
		return
	}
	w.cause = cause
	w.end(cause)
}
