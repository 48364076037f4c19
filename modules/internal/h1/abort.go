package h1

import "sync"

// Abort ends one request from outside, as the end of its context would: the
// round trip under way, or the reading of its answer. It costs less than a
// context of its own. The zero Abort is ready to use; a nil one never ends
// anything. Safe for concurrent use.
type Abort struct {
	mu  sync.Mutex
	err error
	end func() // closes what the request waits for now

	resent bool // only the request's own goroutine uses it
}

// Do ends the request with err, which must not be nil. Only the first call
// counts.
func (a *Abort) Do(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err != nil {
		return
	}
	a.err = err
	if a.end != nil {
		a.end()
	}
}

// Err returns what the request was ended with, or nil.
func (a *Abort) Err() error {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err
}

// Resent reports whether the request was sent a second time, after its kept
// connection turned out to be closed. It is for the goroutine that made the request.
func (a *Abort) Resent() bool { return a.resent }

func (a *Abort) again() {
	if a != nil {
		a.resent = true
	}
}

// bind makes end what an abort calls, at once if it has been called already.
// Nil is nothing.
func (a *Abort) bind(end func()) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.end = end; a.err != nil && end != nil {
		end()
	}
}

// release ends the binding and reports whether nothing was aborted by then.
func (a *Abort) release() bool {
	if a == nil {
		return true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.end = nil
	return a.err == nil
}
