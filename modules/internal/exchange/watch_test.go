package exchange

import (
	"errors"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// The limits of these tests, other than each other.
const (
	firstLimit = 30 * time.Second
	idleLimit  = 20 * time.Second
	totalLimit = 90 * time.Second
)

// TestWatch: what ends an attempt, and when to the moment.
func TestWatch(t *testing.T) {
	every := func(d time.Duration, n int, do func(w *Watch)) func(*Watch) {
		return func(w *Watch) {
			for range n {
				time.Sleep(d)
				do(w)
			}
		}
	}
	first := func(w *Watch) { w.First(time.Now()) }
	came := func(w *Watch) { w.Read(); w.Reading() }
	for _, c := range []struct {
		name  string
		does  func(w *Watch)
		cause error
		at    time.Duration
	}{
		{"nothing comes", func(*Watch) {}, errFirstToken, firstLimit},
		{"only comments come", every(time.Second, 200, came), errFirstToken, firstLimit},
		{"a first token, late", every(firstLimit-1, 1, first), errIdleToken, firstLimit - 1 + idleLimit},
		{"a first token at once", func(w *Watch) { first(w) }, errIdleToken, idleLimit},
		{"tokens, and then none", func(w *Watch) { first(w); every(idleLimit-1, 2, came)(w) }, errIdleToken, 2*(idleLimit-1) + idleLimit},
		{"a client that does not take its tokens", func(w *Watch) { first(w); w.Read() }, errTotal, totalLimit},
		{"tokens for ever", func(w *Watch) { first(w); every(time.Second, 200, came)(w) }, errTotal, totalLimit},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, ended := watched(t, true)
				begin := time.Now()
				go c.does(w)
				if cause := <-ended; !errors.Is(cause, c.cause) || !errors.Is(w.Cause(), c.cause) {
					t.Errorf("ended by %v, want %v", cause, c.cause)
				}
				if took := time.Since(begin); took != c.at {
					t.Errorf("after %v, want %v", took, c.at)
				}
				time.Sleep(time.Hour) // till all of it has come to an end
			})
		})
	}
}

// watched is an attempt on the one replica of its model.
func watched(t *testing.T, resend bool) (*Watch, <-chan error) {
	t.Helper()
	world := newWorld(t, "gpu1:8000")
	x := world.ask(t, chatBody)
	mustPick(t, x)
	limits := &x.serving.Reliability
	limits.ResendAfterSend = resend
	limits.FirstToken, limits.IdleToken, limits.Total = firstLimit, idleLimit, totalLimit
	ended := make(chan error, 1)
	w := new(Watch)
	x.Watch(w, time.Now(), func(cause error) { ended <- cause })
	w.Reading()
	return w, ended
}

func TestStoppedWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, ended := watched(t, true)
		time.Sleep(firstLimit - 1)
		w.Stop()
		time.Sleep(time.Hour)
		if len(ended) > 0 || w.Cause() != nil {
			t.Error("it went on")
		}
		new(Watch).Stop()
	})
}

// TestGoneReplica: its port is closed, and the connections stay: what it has not
// begun to answer is given up, and may go elsewhere once.
func TestGoneReplica(t *testing.T) {
	for _, c := range []struct {
		name  string
		first bool
		once  bool    // it must not be sent again
		dials []error // one a second, the last of them on and on
		cause error
	}{
		{"gone", false, false, []error{nil, syscall.ECONNREFUSED}, errGone},
		{"gone, but not to be sent again", false, true, []error{syscall.ECONNREFUSED}, errFirstToken},
		{"gone, after a token", true, false, []error{syscall.ECONNREFUSED}, errIdleToken},
		{"back", false, false, []error{syscall.ECONNREFUSED, syscall.ECONNREFUSED, nil}, errFirstToken},
		{"not to be reached", false, false, []error{syscall.ETIMEDOUT}, errFirstToken},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, ended := watched(t, !c.once)
				if c.first {
					w.First(time.Now())
				}
				for i := range 100 {
					w.replica.Health.Dialled(c.dials[min(i, len(c.dials)-1)])
					time.Sleep(time.Second)
				}
				if cause := <-ended; !errors.Is(cause, c.cause) {
					t.Fatalf("ended by %v, want %v", cause, c.cause)
				}
				again := w.x.GaveUp(w.Cause())
				if want := errors.Is(c.cause, errGone); again != want {
					t.Errorf("to be sent again: %v, want %v", again, want)
				}
				if w.x.GaveUp(w.Cause()) {
					t.Error("to be sent a third time")
				}
			})
		})
	}
}
