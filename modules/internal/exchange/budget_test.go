package exchange

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
)

func TestBudget(t *testing.T) {
	b := NewBudget(100)
	if !b.Take(60) || !b.Take(40) {
		t.Fatal("what is there was refused")
	}
	if b.Take(1) {
		t.Error("more than there is was given")
	}
	if b.Used() != 100 {
		t.Errorf("used %d after a refusal", b.Used())
	}
	b.Give(50)
	if b.Take(51) || !b.Take(50) || b.Used() != 100 {
		t.Errorf("used %d", b.Used())
	}
	var wg sync.WaitGroup
	b = NewBudget(10)
	for range 50 {
		wg.Go(func() {
			for range 100 {
				if b.Take(3) {
					if used := b.Used(); used < 3 || used > 10 {
						t.Errorf("used %d of 10 while 3 are held", used)
					}
					b.Give(3)
				}
			}
		})
	}
	wg.Wait()
	if b.Used() != 0 {
		t.Errorf("used %d at rest", b.Used())
	}
}

// 30 bodies of the limit at once against a budget for fewer: some are told to
// come back, memory stays within the budget, and all of it is given back.
func TestB07_BodiesAtOnce(t *testing.T) {
	const limit, n = 1 << 20, 30
	w := newWorld(t)
	w.Budget = NewBudget(8 * limit)
	body := bodyOf(limit)
	var wg sync.WaitGroup
	errs := make([]error, n)
	// All of them have sent half before any sends the rest.
	half := make(chan struct{})
	var arrived sync.WaitGroup
	arrived.Add(n)
	go func() { arrived.Wait(); close(half) }()
	for i := range n {
		r := chunked("", 0)
		if i%2 == 0 {
			r.ContentLength = limit
		}
		first, once := strings.NewReader(body[:limit/4]), sync.OnceFunc(arrived.Done)
		rest := strings.NewReader(body[limit/4:])
		r.Body = readFunc(func(p []byte) (int, error) {
			if used := w.Budget.Used(); used > 8*limit {
				t.Errorf("%d bytes are held", used)
			}
			if k, err := first.Read(p); err == nil {
				return k, nil
			}
			once()
			<-half
			return rest.Read(p)
		})
		x := w.open(t, r)
		wg.Go(func() {
			errs[i] = x.Read(r)
			once()
			x.End()
		})
	}
	wg.Wait()
	busy := 0
	for _, err := range errs {
		switch {
		case err == nil:
		case errors.Is(err, ErrBusy):
			busy++
			if e := Answer(err); e.Status != http.StatusServiceUnavailable || e.RetryAfter == 0 {
				t.Errorf("status %d, Retry-After %v", e.Status, e.RetryAfter)
			}
		default:
			t.Error(err)
		}
	}
	if busy == 0 || busy == n {
		t.Errorf("%d of %d were told to come back", busy, n)
	}
	w.atRest(t)
}

// The client leaves, and the exchange ends, while its body is being read: what
// the reading still takes must not be lost.
func TestEndWhileTheBodyIsRead(t *testing.T) {
	w := newWorld(t, "gpu1:8000")
	for range 50 {
		r := chunked(bodyOf(300<<10), 10000)
		x := w.open(t, r)
		var wg sync.WaitGroup
		inner, reads := r.Body, 0
		r.Body = readFunc(func(p []byte) (int, error) {
			if reads++; reads == 7 {
				wg.Go(x.End)
			}
			return inner.Read(p)
		})
		if x.Read(r) == nil && x.Resolve() == nil {
			if e := x.Pick(); e != nil {
				x.Direct(r)
			}
		}
		wg.Wait()
	}
	w.atRest(t)
}

func TestReadAfterTheEnd(t *testing.T) {
	w := newWorld(t, "gpu1:8000")
	r := newRequest(chatBody)
	x := w.open(t, r)
	x.End()
	if err := x.Read(r); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if e := x.Pick(); e != nil {
		t.Error("an exchange that has ended picked a replica")
	}
	w.atRest(t)
}

func TestDropBody(t *testing.T) {
	w := newWorld(t, "gpu1:8000")
	x := w.ask(t, chatBody)
	mustPick(t, x)
	x.DropBody()
	x.DropBody()
	if used := w.Budget.Used(); used != 0 {
		t.Errorf("%d bytes are held of a body that was dropped", used)
	}
	if r := newRequest(""); x.Direct(r) {
		t.Error("a body that is gone was sent")
	}
	x.End()
	x.DropBody()
	w.atRest(t)
}

func BenchmarkRead(b *testing.B) {
	w := newWorld(b)
	for _, size := range []int{1 << 10, 64 << 10, 1 << 20} {
		body := []byte(bodyOf(size))
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				r := &http.Request{Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(size), Header: http.Header{}}
				x := &Exchange{rt: w.Runtime, Options: DefaultOptions}
				if _, err := x.readBody(r); err != nil {
					b.Fatal(err)
				}
				x.DropBody()
			}
		})
	}
}
