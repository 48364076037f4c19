package integration

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
)

// send changes the config through the admin API and returns the status and
// the answer. It returns when the old admin server takes no connection any
// more: Go's server closes one that it has accepted without an answer, when it
// shuts down before it has read a request. Then it asks again.
func (g *gateway) send(t *testing.T, path, config string, headers ...string) (status int, text string) {
	t.Helper()
	for range 100 {
		if status, text = g.sendOnce(t, path, config, headers...); status != 0 {
			return status, text
		}
	}
	t.Fatal("100 connections in a row were lost")
	return 0, ""
}

// sendOnce is send over one connection; the status is 0 if that is lost.
func (g *gateway) sendOnce(t *testing.T, path, config string, headers ...string) (status int, text string) {
	t.Helper()
	conn, err := net.Dial("tcp", g.Admin)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(deadline))
	req, err := http.NewRequest(http.MethodPost, "http://"+g.Admin+path, strings.NewReader(config))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	in := bufio.NewReader(conn)
	if err = req.Write(conn); err == nil {
		_, err = in.Peek(1)
	}
	if isLost(err) {
		return 0, ""
	}
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(in, req)
	if err != nil {
		t.Fatal(err)
	}
	text = readAll(t, res.Body)
	if _, err := in.ReadByte(); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal("the old admin server is still there")
	}
	http.DefaultClient.CloseIdleConnections()
	return res.StatusCode, text
}

// reload loads a Caddyfile through the admin API.
func (g *gateway) reload(t *testing.T, text string) {
	t.Helper()
	cfg, err := adapt(text)
	if err != nil {
		t.Fatalf("adapt: %v\n%s", err, text)
	}
	if status, text := g.send(t, "/load", string(cfg)); status != http.StatusOK {
		t.Fatalf("load: %d %s", status, text)
	}
	g.settle(t)
}

// failReload loads a Caddyfile that must be refused.
func (g *gateway) failReload(t *testing.T, text, why string) {
	t.Helper()
	cfg, err := adapt(text)
	if err != nil {
		t.Fatalf("adapt: %v\n%s", err, text)
	}
	if status, text := g.send(t, "/load", string(cfg)); status < 400 || !strings.Contains(text, why) {
		t.Fatalf("load: %d %s, want an error with %q", status, text, why)
	}
}

// TestC01_ReloadUnderStreams changes the config in every way under 500 open
// streams and a flow of new requests. Streams whose writes nobody has to see go
// another way.
func TestC01_ReloadUnderStreams(t *testing.T) {
	for what, logged := range map[string]bool{"access log": true, "no log": false} {
		t.Run(what, func(t *testing.T) { reloadUnderStreams(t, logged) })
	}
}

func reloadUnderStreams(t *testing.T, logged bool) {
	t.Helper()
	const n = 500
	finish := make(chan struct{})
	a, b := newEngine(t, ticking(100*time.Millisecond, finish)), newEngine(t, ticking(100*time.Millisecond, finish))
	refuses := newEngine(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "600")
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	drained, added := newEngine(t, answer), newEngine(t, answer)
	option := func(alias, reliability string, engines ...*engine) string {
		return strings.Replace(one(engines...), "endpoint", "alias "+alias+"\n\t\t\tendpoint", 1) +
			"\n\t\treliability {\n\t\t\tconnect_timeout 1m\n\t\t\tcooldown 10m\n\t\t\t" + reliability + "\n\t\t}"
	}
	first := option("old", "", a, b, refuses, drained)
	g := newGateway(t)
	g.unlogged = !logged
	g.run(t, g.caddyfile(first, "\theader X-Version 1\n\tllm"))
	g.admin(t, "/llmgw/replicas/drain", fmt.Sprintf(`{"replica":%q}`, drained.Address), nil)
	eventually(t, "the breaker of the replica that refuses is open", func() bool {
		g.post(t, "/v1/chat/completions", request)
		return g.replicas(t)[refuses.Address].State == "cooling"
	})
	const ok, broken = `llmgw_outcomes_total{model="m",outcome="ok"}`, `llmgw_outcomes_total{model="m",outcome="broken"}`
	counted, _ := g.metric(t, ok)
	goroutines, files := goroutinesNow(), openFiles(t)

	streams := g.streams(t, n, strings.Replace(streamRequest, `"m"`, `"old"`, 1))
	kept := func(after string) {
		t.Helper()
		list := g.replicas(t)
		// The flow of other requests counts too.
		if sum := list[a.Address].Inflight + list[b.Address].Inflight; sum < n || sum > n+4 {
			t.Errorf("after %s: %d in flight, want the %d streams", after, sum, n)
		}
		if s := list[refuses.Address].State; s != "cooling" {
			t.Errorf("after %s: the open breaker is forgotten: %s", after, s)
		}
		if s := list[drained.Address].State; s != "draining" {
			t.Errorf("after %s: the drain is forgotten: %s", after, s)
		}
		if v, _ := g.metric(t, ok); v < counted {
			t.Errorf("after %s: %v requests are counted, %v before", after, v, counted)
		}
		if faults := streams.broken(); len(faults) > 0 {
			t.Fatalf("after %s: %d streams broke: %v", after, len(faults), faults[0])
		}
	}
	kept("the start")
	passers := g.pass(t, 4, nil)

	cfg, err := adapt(g.caddyfile(first, "\theader X-Version 2\n\tllm"))
	if err != nil {
		t.Fatal(err)
	}
	_, apps, _ := strings.Cut(string(cfg), `"apps":`)
	if status, text := g.send(t, "/config/apps", strings.TrimSuffix(apps, "}")); status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	kept("an unrelated change")
	passers.more(8)

	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	g.failReload(t, strings.Replace(g.caddyfile(option("other", "", added), "\tllm"), g.listen, taken.Addr().String(), 1), "address already in use")
	kept("a failed start")
	g.failReload(t, g.caddyfile(first+"\n\t\tmodel n {\n\t\t\trouting nonsense\n\t\t\tendpoint "+added.Address+"\n\t\t}", "\tllm"), "nonsense")
	kept("a refused config")
	passers.more(8)

	g.reload(t, g.caddyfile(option("new", "retries 1\n\t\t\ttotal_timeout 10m", a, b, refuses, drained, added), "\tllm"))
	kept("a changed model")
	passers.more(8)
	for name, want := range map[string]int{"old": http.StatusNotFound, "new": http.StatusOK} {
		// The old server may still accept for a moment.
		eventually(t, fmt.Sprintf("the alias %s answers %d", name, want), func() bool {
			status, _ := g.fresh(t, strings.Replace(request, `"m"`, fmt.Sprintf("%q", name), 1))
			return status == want
		})
	}
	passers.end(a, b, refuses, drained, added)

	g.reload(t, g.caddyfile(first, "\trespond gone 410"))
	kept("the removal of the route")
	eventually(t, "the route is gone", func() bool {
		status, _ := g.fresh(t, request)
		return status == http.StatusGone
	})
	whole := g.caddyfile("", "\trespond gone 410")
	begin, end := strings.Index(whole, "\tllmgw {"), strings.Index(whole, "\n}\nhttp://")
	g.reload(t, whole[:begin]+whole[end:])
	if status := g.admin(t, "/llmgw/replicas", "", nil); status != http.StatusServiceUnavailable {
		t.Errorf("the app is still there: %d", status)
	}
	g.reload(t, g.caddyfile(first, "\tllm"))
	kept("the removal of the app and its return")

	close(finish)
	streams.end(t)
	eventually(t, "all counts are 0", func() bool {
		for _, r := range g.replicas(t) {
			if r.Inflight != 0 || r.PendingTokens != 0 {
				return false
			}
		}
		return true
	})
	if v, _ := g.metric(t, ok); v < counted+n {
		t.Errorf("%v requests are counted after the streams, %v before", v, counted)
	}
	if v, _ := g.metric(t, broken); v != 0 {
		t.Errorf("%v are counted as broken", v)
	}
	if after := settled(t, goroutines+5); after > goroutines+5 {
		t.Errorf("%d goroutines before, %d after", goroutines, after)
	}
	settledFiles(t, files+5)
}

// lastApp is an app that cannot start, after it has asked the site of its own
// config for something. Apps start in any order: the site may serve already, and
// the gateway's app may be to come yet.
type lastApp struct {
	Address string `json:"address"`
	Body    string `json:"body"`
}

// CaddyModule returns the Caddy module information.
func (*lastApp) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "cannot_start", New: func() caddy.Module { return new(lastApp) }}
}

// Start implements caddy.App.
func (a *lastApp) Start() error {
	g := &gateway{listen: a.Address}
	for range 20 { // the old config's site is at the same address
		if res, _, err := g.once(context.Background(), a.Body); err == nil && res.StatusCode == http.StatusOK {
			return errors.New("it cannot start, though the site serves")
		}
	}
	return errors.New("it cannot start")
}

// Stop implements caddy.App.
func (*lastApp) Stop() error { return nil }

func init() { caddy.RegisterModule(new(lastApp)) }

// TestC06_FailedReloadsLeaveNothing: neither goroutines nor files nor scrape
// loops, and the config that serves goes on, for the admin API too.
func TestC06_FailedReloadsLeaveNothing(t *testing.T) {
	const rounds = 30
	e := newEngine(t, answer)
	e.setPage(page(0, 0, 0))
	g := start(t, one(e), "\tllm")
	g.known(t, e)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	// Another model, and a replica that the running config does not have.
	other := newEngine(t, answer)
	failing := g.caddyfile("\t\tmodel n {\n\t\t\tendpoint "+e.Address+" "+other.Address+"\n\t\t}", "\tllm")
	cfg, err := adapt(failing)
	if err != nil {
		t.Fatal(err)
	}
	last := fmt.Sprintf(`"apps":{"cannot_start":{"address":%q,"body":%q},`, g.listen, strings.Replace(request, `"m"`, `"n"`, 1))
	served := 0 // by configs that failed
	goroutines, files := goroutinesNow(), openFiles(t)
	for range rounds {
		// It provisions, and fails to start.
		g.failReload(t, strings.Replace(failing, g.listen, taken.Addr().String(), 1), "address already in use")
		status, text := g.send(t, "/load", strings.Replace(string(cfg), `"apps":{`, last, 1))
		if status < 400 || !strings.Contains(text, "it cannot start") {
			t.Fatalf("load: %d %s", status, text)
		}
		if strings.Contains(text, "the site serves") {
			served++
		}
		list := g.replicas(t)
		if models := list[e.Address].Models; len(list) != 1 || len(models) != 1 || models[0] != "m" {
			t.Errorf("the admin API shows %d replicas and the models %v", len(list), models)
		}
		if status, text := g.fresh(t, request); status != http.StatusOK {
			t.Errorf("%d %s", status, text)
		}
	}
	t.Logf("%d of %d configs had served before they failed", served, rounds)
	// Scrapes are 90 ms apart at least: a second loop would halve the time.
	scrapes := func() (n int) {
		for _, r := range e.all() {
			if r.Path == "/metrics" {
				n++
			}
		}
		return n
	}
	asked, begin, n := len(other.all()), time.Now(), scrapes()
	eventually(t, "20 more scrapes", func() bool { return scrapes() >= n+20 })
	if now := len(other.all()); now > asked+1 { // one may have been on its way
		t.Errorf("a replica that no config has was asked %d times", now-asked)
	}
	if took := time.Since(begin); took < 1500*time.Millisecond {
		t.Errorf("20 scrapes took %v: more than one loop runs", took)
	}
	if after := settled(t, goroutines+5); after > goroutines+5 {
		t.Errorf("%d goroutines before, %d after", goroutines, after)
	}
	settledFiles(t, files+5)
}

// TestC10_ForcedReloads loads the config that runs again and again.
func TestC10_ForcedReloads(t *testing.T) {
	e := newEngine(t, answer)
	e.setPage(page(0, 0, 0))
	g := start(t, one(e), "\tllm")
	g.known(t, e)
	cfg, err := adapt(g.caddyfile(one(e), "\tllm"))
	if err != nil {
		t.Fatal(err)
	}
	goroutines, files := goroutinesNow(), openFiles(t)
	for range 10 {
		// This is what `reload --force` sends.
		if status, text := g.send(t, "/load", string(cfg), "Cache-Control", "must-revalidate"); status != http.StatusOK {
			t.Fatalf("%d %s", status, text)
		}
		if status, text := g.fresh(t, request); status != http.StatusOK {
			t.Errorf("%d %s", status, text)
		}
	}
	if after := settled(t, goroutines+5); after > goroutines+5 {
		t.Errorf("%d goroutines before, %d after", goroutines, after)
	}
	settledFiles(t, files+5)
	if n := len(g.replicas(t)); n != 1 {
		t.Errorf("%d replicas", n)
	}
}
