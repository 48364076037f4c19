package exchange

import (
	"context"
	"io"
	"sync/atomic"
	"time"
)

// Watch holds one attempt to its time limits: until the first token, between
// two tokens, and in all. When one passes, the attempt's context ends with the
// limit as its cause.
type Watch struct {
	x      *Exchange
	cancel context.CancelCauseFunc
	ctx    context.Context
	timer  *time.Timer
	last   atomic.Int64 // when the replica last gave something, Unix ns
	first  atomic.Bool  // the first token, or the answer, has come
}

// The limits, as the causes of a context that they ended. Each is also what the
// client is told.
var (
	errFirstToken = Fail(ErrTimeout, "the replica gave no token in time")
	errIdleToken  = Fail(ErrTimeout, "the replica stopped giving tokens")
	errTotal      = Fail(ErrTimeout, "the request took longer than the gateway allows")
)

// Watch begins an attempt. The caller must end it with [Watch.Stop].
func (x *Exchange) Watch(ctx context.Context) *Watch {
	w := &Watch{x: x}
	w.ctx, w.cancel = context.WithCancelCause(ctx)
	w.last.Store(x.rt.Now().UnixNano())
	w.timer = time.AfterFunc(w.next(x.rt.Now()), w.expire)
	return w
}

// Context ends when a limit passes, or with the request.
func (w *Watch) Context() context.Context { return w.ctx }

// Cause returns the limit that passed, or nil.
func (w *Watch) Cause() error {
	switch cause := context.Cause(w.ctx); cause {
	case errFirstToken, errIdleToken, errTotal: //nolint:errorlint // these very values
		return cause
	}
	return nil
}

// First notes that the first token, or the answer, has come.
func (w *Watch) First() {
	now := w.x.rt.Now()
	w.last.Store(now.UnixNano())
	w.first.Store(true)
	// The limit between tokens is the shorter one as a rule.
	w.timer.Reset(w.next(now))
}

// Release ends the limits and leaves the context: what was an answer has become
// a tunnel.
func (w *Watch) Release() { w.timer.Stop() }

// Stop ends the watch and the attempt's context.
func (w *Watch) Stop() {
	w.timer.Stop()
	w.cancel(nil)
}

// next returns the time until the next limit can pass; 0 or less if one has.
func (w *Watch) next(now time.Time) time.Duration {
	l := &w.x.Model.Reliability
	return min(w.limit()-now.Sub(time.Unix(0, w.last.Load())), l.Total-now.Sub(w.x.Start))
}

func (w *Watch) limit() time.Duration {
	if w.first.Load() {
		return w.x.Model.Reliability.IdleToken
	}
	return w.x.Model.Reliability.FirstToken
}

func (w *Watch) expire() {
	now := w.x.rt.Now()
	if d := w.next(now); d > 0 {
		w.timer.Reset(d)
		return
	}
	switch {
	case now.Sub(w.x.Start) >= w.x.Model.Reliability.Total:
		w.cancel(errTotal)
	case w.first.Load():
		w.cancel(errIdleToken)
	default:
		w.cancel(errFirstToken)
	}
}

// Body watches an answer's body. A read that a limit ended fails with it, and
// with the client's own departure as context.Canceled.
func (w *Watch) Body(src io.ReadCloser) io.ReadCloser { return &watchedBody{src: src, w: w} }

type watchedBody struct {
	src io.ReadCloser
	w   *Watch
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.src.Read(p)
	// Before the first token only that counts: comments do not keep an attempt
	// alive.
	if n > 0 && b.w.first.Load() {
		b.w.last.Store(b.w.x.rt.Now().UnixNano())
	}
	if err != nil && err != io.EOF { //nolint:errorlint // io.Reader's contract
		if cause := b.w.Cause(); cause != nil {
			err = cause
		}
	}
	return n, err
}

func (b *watchedBody) Close() error {
	err := b.src.Close()
	b.w.Stop()
	return err
}
