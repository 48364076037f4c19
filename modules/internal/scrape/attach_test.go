package scrape

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llmgw/llmgw/modules/internal/fleet"
)

// Two configs name one replica, as during a reload: it is asked once, as the
// last one says, and on until the last of them is gone.
func TestTwoAttachmentsShareAReplica(t *testing.T) {
	play(t, func(s *stage) {
		first, firstChanges := s.attach()
		s.after(0)
		s.engine.set("/v1/models", `{"data":[{"id":"m"},{"id":"n"}]}`)
		second := s.target
		second.APIKey, second.Interval = "second", 10*time.Second
		secondChanges := 0
		detach := s.manager.Attach([]Target{second}, func() { secondChanges++ })
		s.after(60 * time.Second)
		if n := len(s.engine.times("/metrics")); n < 7 || n > 9 {
			s.Errorf("%d scrapes in a minute, want one each 10 s", n)
		}
		if key := s.engine.keys[len(s.engine.keys)-1]; key != "Bearer second" {
			s.Errorf("asked with %q, want the second's key", key)
		}
		if *firstChanges != 2 || secondChanges != 1 {
			s.Errorf("%d and %d changes, want 2 and 1: both are told", *firstChanges, secondChanges)
		}
		first()
		first() // does nothing
		before := len(s.engine.times("/metrics"))
		s.after(20 * time.Second)
		if n := len(s.engine.times("/metrics")) - before; n < 1 {
			s.Error("the loop has ended with the first of two")
		}
		detach()
		s.manager.Wait()
		before = len(s.engine.times("/metrics"))
		s.after(time.Minute)
		if n := len(s.engine.times("/metrics")) - before; n != 0 {
			s.Errorf("%d scrapes after the last detach", n)
		}
	})
}

// A config that is taken back leaves what the one before it said.
func TestDetachRestoresTheOtherTarget(t *testing.T) {
	play(t, func(s *stage) {
		first, _ := s.attach()
		defer first()
		s.after(0)
		second := s.target
		second.APIKey = "second"
		detach := s.manager.Attach([]Target{second}, func() {})
		s.after(2 * time.Second)
		detach()
		s.after(2 * time.Second)
		if key := s.engine.keys[len(s.engine.keys)-1]; key != "Bearer "+testKey {
			s.Errorf("asked with %q, want the first's key", key)
		}
	})
}

func TestAttachAgainAfterTheEnd(t *testing.T) {
	play(t, func(s *stage) {
		for i := range 3 {
			detach, _ := s.attach()
			s.after(0)
			if n := len(s.engine.times("/metrics")); n != i+1 {
				s.Errorf("%d scrapes after %d attachments", n, i+1)
			}
			detach()
		}
	})
}

func TestAttachNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New(func() *slog.Logger { return slog.New(slog.DiscardHandler) }, nil)
		m.Wait()
		m.Attach(nil, func() { t.Error("nothing has changed") })()
		m.Wait()
	})
}

func TestOneLoopPerReplica(t *testing.T) {
	play(t, func(s *stage) {
		other := newEngine()
		other.set("/v1/models", "404")
		targets := []Target{s.target, target(t, s.fleet, "gpu2:8000", NewClient(other)), s.target}
		detach := s.manager.Attach(targets, func() {})
		defer detach()
		s.after(10 * time.Second)
		for name, e := range map[string]*engine{"first": s.engine, "second": other} {
			if n := len(e.times("/metrics")); n < 9 || n > 12 {
				s.Errorf("%s engine: %d scrapes in 10 s", name, n)
			}
		}
	})
}

func TestAttachConcurrently(t *testing.T) {
	m := New(func() *slog.Logger { return slog.New(slog.DiscardHandler) }, nil)
	e, f := newEngine(), fleet.New(nil)
	var targets []Target
	for i := range 4 {
		tg := target(t, f, fmt.Sprintf("gpu%d:8000", i), NewClient(e))
		tg.Interval = time.Millisecond
		targets = append(targets, tg)
	}
	var changes atomic.Int32
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for i := range 30 {
				mine := slices.Clone(targets[(worker+i)%3:])
				detach := m.Attach(mine, func() { changes.Add(1) })
				targets[i%4].Replica.Health.ConnectFailed("connect: refused")
				detach()
			}
		})
	}
	wg.Wait()
	m.Wait()
	before := len(e.times("/metrics"))
	m.mu.Lock()
	left := len(m.onModels)
	m.mu.Unlock()
	if left != 0 {
		t.Errorf("%d attachments are left", left)
	}
	if after := len(e.times("/metrics")); after != before {
		t.Error("a loop goes on after Wait")
	}
}

// Over real connections: statistics arrive, an engine that is closed goes down,
// and comes back at the same address.
func TestManagerOverSockets(t *testing.T) {
	well := http.NewServeMux()
	well.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, good) })
	well.HandleFunc("/health", func(http.ResponseWriter, *http.Request) {})
	well.HandleFunc("/v1/models", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"data":[{"id":"m"}]}`) })
	server := httptest.NewServer(well)
	address := server.Listener.Addr().String()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	tg := target(t, fleet.New(nil), address, NewClient(transport))
	tg.Interval = 10 * time.Millisecond
	m := New(func() *slog.Logger { return slog.New(slog.DiscardHandler) }, nil)
	var changes atomic.Int32
	detach := m.Attach([]Target{tg}, func() { changes.Add(1) })
	eventually(t, "statistics arrive", func() bool { return tg.Replica.Stats().Waiting == 3 && changes.Load() == 1 })
	server.CloseClientConnections()
	server.Close()
	eventually(t, "it goes down", func() bool { return tg.Replica.State() != 0 })
	again, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	server = &httptest.Server{Listener: again, Config: &http.Server{Handler: well}}
	server.Start()
	defer server.Close()
	eventually(t, "it comes back", func() bool { return tg.Replica.State() == 0 && tg.Replica.Stats().Waiting == 3 })
	detach()
	m.Wait()
}

// An engine that takes connections and never answers, or answers a part, is a
// failed scrape; nothing of it is left running.
func TestHangingEngineLeavesNoGoroutine(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			fmt.Fprint(w, `{"data":[]}`)
			return
		}
		fmt.Fprint(w, "vllm:num_requests_waiting 1\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	defer server.Close()
	before := runtime.NumGoroutine()
	transport := &http.Transport{}
	tg := target(t, fleet.New(nil), server.URL, NewClient(transport))
	m := New(func() *slog.Logger { return slog.New(slog.DiscardHandler) }, nil)
	detach := m.Attach([]Target{tg}, func() {})
	eventually(t, "the scrape fails", func() bool { return tg.Replica.Stats().Failed != "" })
	if failed := tg.Replica.Stats().Failed; !strings.Contains(failed, "deadline") {
		t.Errorf("failed: %s", failed)
	}
	detach()
	m.Wait()
	transport.CloseIdleConnections()
	eventually(t, "its goroutines end", func() bool { return runtime.NumGoroutine() <= before })
}

// eventually polls until a condition holds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("%s: not within 20 s", what)
		}
	}
}
