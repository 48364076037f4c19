package llmgw

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
)

// TestHolds: what exchanges need is given back once, with the last hold, and a
// request that comes later gets none.
func TestHolds(t *testing.T) {
	released := 0
	a := &App{release: []func(){func() { released++ }}}
	a.holds.Store(1)
	if !a.hold() {
		t.Fatal("no hold while the config lives")
	}
	a.letGo() // the config
	if released != 0 {
		t.Fatal("released under an open exchange")
	}
	a.letGo() // the exchange
	if released != 1 {
		t.Fatalf("released %d times", released)
	}
	if a.hold() {
		t.Error("a hold on what is gone")
	}
	if released != 1 {
		t.Errorf("released %d times", released)
	}
}

func TestHoldsConcurrently(t *testing.T) {
	released := 0
	a := &App{release: []func(){func() { released++ }}}
	a.holds.Store(1)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				if a.hold() {
					a.letGo()
				}
			}
		})
	}
	a.letGo()
	wg.Wait()
	if released != 1 || a.holds.Load() != 0 {
		t.Errorf("released %d times, %d holds", released, a.holds.Load())
	}
}

// TestCleanupEndsWhatRequestsBegan: HTTP may serve before the app starts, and
// then another app fails, so that nobody starts or stops this one.
func TestCleanupEndsWhatRequestsBegan(t *testing.T) {
	asked := make(chan struct{}, 100)
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case asked <- struct{}{}:
		default:
		}
		http.NotFound(w, r)
	}))
	defer engine.Close()
	ctx, cancel := caddy.NewContext(caddy.Context{Context: t.Context()})
	defer cancel()
	a := &App{Endpoints: []*Endpoint{{Addresses: []string{engine.URL}}}}
	if err := a.Provision(ctx); err != nil {
		t.Fatal(err)
	}
	a.Runtime()
	<-asked
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := a.Cleanup(); err != nil {
			t.Error(err)
		}
		a.shared.scraper.Wait()
	}()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the replica is still asked")
	}
	if n := len(a.shared.fleet.Replicas()); n != 0 {
		t.Errorf("%d replicas are held", n)
	}
}
