package exchange

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/internal/fleet"
	"github.com/llmgw/llmgw/modules/internal/pipeline"
	"github.com/llmgw/llmgw/modules/internal/tenant"
	"github.com/llmgw/llmgw/modules/schedule"
)

// world is a runtime over a fleet, and what its hooks have seen.
type world struct {
	*Runtime
	fleet *fleet.Fleet

	mu       sync.Mutex
	opened   int // and loads of adapters begun
	loads    int
	ended    []*Exchange
	failures []string
}

// chat is the shipped profile of that name.
func chat() *pipeline.Profile {
	return &pipeline.Profile{
		Name: "chat",
		Scorers: []pipeline.WeightedScorer{
			{Name: "session", Weight: 3, Scorer: schedule.Session{}},
			{Name: "prefix", Weight: 4, Scorer: schedule.Prefix{}},
			{Name: "spread", Weight: 2, Scorer: schedule.Spread{}},
			{Name: "queue", Weight: 1, Scorer: schedule.Queue{}},
			{Name: "kv", Weight: 1, Scorer: schedule.KV{}},
			{Name: "inflight", Weight: 1, Scorer: schedule.Inflight{}},
		},
		PickerName: "p2c", Picker: schedule.P2C{},
	}
}

// newWorld serves the model "m", alias "alias", on the addresses.
func newWorld(t testing.TB, addresses ...string) *world {
	t.Helper()
	w := &world{fleet: fleet.New(nil)}
	m := &catalog.Model{
		Name: "m", Aliases: []string{"alias"},
		SessionHeader: "X-Session-Id", SessionLoad: 1.25, TargetWaiting: 4, KVCeiling: 0.9,
	}
	for _, address := range addresses {
		m.Endpoints = append(m.Endpoints, w.endpoint(t, address))
	}
	w.serve(t, nil, m, &catalog.Model{Name: "secret", Aliases: []string{"hidden"}})
	return w
}

// serve replaces the catalog.
func (w *world) serve(t testing.TB, learning []*catalog.Endpoint, models ...*catalog.Model) {
	t.Helper()
	for _, m := range models {
		m.Reliability = catalog.Reliability{
			Retries: 2, ResendAfterSend: true, Cooldown: 15 * time.Second,
			FirstToken: time.Minute, IdleToken: time.Minute, Total: time.Hour,
		}
	}
	c, err := catalog.New(models, learning, catalog.Model{TargetWaiting: 4, KVCeiling: 0.9})
	if err != nil {
		t.Fatal(err)
	}
	w.Runtime = &Runtime{
		Catalog: c,
		Profiles: map[string]*pipeline.Profile{
			"chat":  chat(),
			"debug": {Name: "debug", PickerName: "round_robin", Picker: schedule.RoundRobin{}},
		},
		DefaultProfile: "chat", Retry: NewRetryBudget(), Budget: NewBudget(1 << 30), Now: time.Now,
		Hold:    func() bool { w.lock(func() { w.opened++ }); return true },
		Release: func() {},
		Ended:   func(x *Exchange) { w.lock(func() { w.ended = append(w.ended, x) }) },
		Picked: func(_ *Exchange, failure string) {
			w.lock(func() { w.failures = append(w.failures, failure) })
		},
	}
}

func (w *world) lock(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

func (w *world) endpoint(t testing.TB, address string) *catalog.Endpoint {
	t.Helper()
	u, err := fleet.ParseURL(address)
	if err != nil {
		t.Fatal(err)
	}
	r, release := w.fleet.Hold(u)
	t.Cleanup(release)
	return &catalog.Endpoint{Replica: r, Pool: "default", Priority: 100, Weight: 1}
}

// atRest fails unless nothing is held any more: no body, no slot, no exchange.
func (w *world) atRest(t testing.TB) {
	t.Helper()
	if n := w.Budget.Used(); n != 0 {
		t.Errorf("%d bytes of the budget are held at rest", n)
	}
	for _, r := range w.fleet.Replicas() {
		if r.Inflight() != 0 || r.PendingTokens() != 0 {
			t.Errorf("%s has %d in flight and %d tokens at rest", r.ID, r.Inflight(), r.PendingTokens())
		}
	}
	w.lock(func() {
		if w.opened-w.loads != len(w.ended) {
			t.Errorf("%d exchanges were opened, %d ended", w.opened-w.loads, len(w.ended))
		}
	})
}

const chatPath = "/v1/chat/completions"

// chatBody is a plain request for the model "m".
const chatBody = `{"model":"m","messages":[{"role":"user","content":"hello"}],"max_tokens":10}`

// newRequest returns a POST of a body whose length is known.
func newRequest(body string) *http.Request {
	return httptest.NewRequest(http.MethodPost, chatPath, strings.NewReader(body))
}

// chunked returns a POST of a body whose length is not known. Its bytes come so
// many at a time, 0 for as many as asked for.
func chunked(body string, each int) *http.Request {
	return httptest.NewRequest(http.MethodPost, chatPath, &trickle{body, each})
}

// open begins an exchange of an anonymous client.
func (w *world) open(t testing.TB, r *http.Request) *Exchange {
	t.Helper()
	x := Open(w.Runtime, r, FindRoute(chatPath, nil))
	x.Anonymous = true
	t.Cleanup(x.End)
	return x
}

// ask opens, reads and resolves a plain request.
func (w *world) ask(t testing.TB, body string) *Exchange {
	t.Helper()
	r := newRequest(body)
	x := w.open(t, r)
	if err := x.Read(r); err != nil {
		t.Fatal(err)
	}
	if err := x.Resolve(); err != nil {
		t.Fatal(err)
	}
	return x
}

// mustPick picks, and fails the test if there is nothing to pick.
func mustPick(t testing.TB, x *Exchange) *catalog.Endpoint {
	t.Helper()
	e := x.Pick()
	if e == nil {
		t.Fatalf("nothing was picked: %v", x.Err())
	}
	return e
}

func mustKey(t testing.TB, k tenant.Key) *tenant.Key {
	t.Helper()
	made, err := tenant.NewKey(k, "sk-llmgw-test")
	if err != nil {
		t.Fatal(err)
	}
	return made
}

type trickle struct {
	rest string
	each int
}

func (b *trickle) Read(p []byte) (int, error) {
	if b.rest == "" {
		return 0, io.EOF
	}
	if b.each > 0 {
		p = p[:min(len(p), b.each)]
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

// gone returns a request whose client has left.
func gone(r *http.Request) *http.Request {
	ctx, cancel := context.WithCancel(r.Context())
	cancel()
	return r.WithContext(ctx)
}
