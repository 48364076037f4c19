package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// engines is how many there are, and wellAtLeast how many of them nothing
	// is done to at any time.
	engines     = 6
	wellAtLeast = 2
)

// trouble is something that is done to one engine, and undone.
type trouble struct {
	name string
	// excuses says that requests to this engine may fail meanwhile.
	excuses bool
	do      func(s *soak, ctx context.Context, e *engine, r *rand.Rand) error
	undo    func(s *soak, ctx context.Context, e *engine) error
}

var troubles = []trouble{
	{"SIGKILL and start", true, killed(syscall.SIGKILL), restarted},
	{"SIGTERM and start", true, killed(syscall.SIGTERM), restarted},
	{"SIGSTOP and SIGCONT", true, signalled(syscall.SIGSTOP), func(_ *soak, _ context.Context, e *engine) error { return e.signal(syscall.SIGCONT) }},
	{"crash", true, fault(`{"mode":"crash","restart_after":"%dms"}`, 500, 3000), back},
	{"status 503", true, fault(`{"mode":"error","status":503,"share":0.%d}`, 1, 9), healthy},
	{"status 429", true, fault(`{"mode":"error","status":429,"share":0.%d}`, 1, 9), healthy},
	{"status 500", true, fault(`{"mode":"error","status":500,"share":0.%d}`, 1, 9), healthy},
	{"error in the stream", true, fault(`{"mode":"inband_error","after_tokens":%d}`, 0, 30), healthy},
	{"break in the stream", true, fault(`{"mode":"break","after_tokens":%d}`, 0, 30), healthy},
	{"break before the answer", true, fault(`{"mode":"break","after_tokens":-1,"share":0.%d}`, 1, 9), healthy},
	{"hang", true, fault(`{"mode":"hang","share":0.%d}`, 1, 9), healthy},
	{"slow", true, fault(`{"mode":"slow","factor":%d}`, 2, 10), healthy},
	{"no metrics", false, fault(`{"mode":"no_metrics"}`, 0, 0), healthy},
	{"frozen metrics", false, fault(`{"mode":"freeze_metrics"}`, 0, 0), healthy},
	{"redirected metrics", false, fault(`{"mode":"redirect_metrics"}`, 0, 0), healthy},
	{"drain", false, drain("drain"), func(s *soak, ctx context.Context, e *engine) error { return drain("undrain")(s, ctx, e, nil) }},
	{"left out of the config", false, leftOut, putBack},
}

func killed(sig syscall.Signal) func(*soak, context.Context, *engine, *rand.Rand) error {
	return func(_ *soak, _ context.Context, e *engine, _ *rand.Rand) error {
		if err := e.signal(sig); err != nil {
			return err
		}
		e.gone()
		return nil
	}
}

func signalled(sig syscall.Signal) func(*soak, context.Context, *engine, *rand.Rand) error {
	return func(_ *soak, _ context.Context, e *engine, _ *rand.Rand) error { return e.signal(sig) }
}

func restarted(_ *soak, ctx context.Context, e *engine) error { return e.start(ctx) }

// fault switches one of the simulator's faults on. The text may have a number in
// it, which is drawn.
func fault(text string, from, to int) func(*soak, context.Context, *engine, *rand.Rand) error {
	return func(_ *soak, ctx context.Context, e *engine, r *rand.Rand) error {
		if strings.Contains(text, "%") {
			return e.control(ctx, fmt.Sprintf(text, from+r.IntN(to-from+1)))
		}
		return e.control(ctx, text)
	}
}

func healthy(_ *soak, ctx context.Context, e *engine) error { return e.control(ctx, `{"mode":"none"}`) }

// back waits for an engine that comes back by itself.
func back(_ *soak, ctx context.Context, e *engine) error {
	return poll(ctx, e.address+" is back", func() bool {
		status, err := get(ctx, "http://"+e.address+"/health")
		return err == nil && status == http.StatusOK
	})
}

// control asks the simulator for a fault.
func (e *engine) control(ctx context.Context, text string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+e.address+"/sim/faults", strings.NewReader(text))
	if err != nil {
		return err
	}
	res, err := fresh.Do(req)
	if err != nil {
		return fmt.Errorf("fault %s: %w", text, err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("fault %s: %s", text, res.Status)
	}
	return nil
}

func drain(what string) func(*soak, context.Context, *engine, *rand.Rand) error {
	return func(s *soak, ctx context.Context, e *engine, _ *rand.Rand) error {
		status, text, err := s.gateway.admin(ctx, "/llmgw/replicas/"+what, "application/json", fmt.Sprintf(`{"replica":%q}`, e.address))
		// A config without this engine may be on its way.
		if err != nil {
			return err
		}
		if status != http.StatusOK && status != http.StatusNotFound {
			return fmt.Errorf("%s: %d %s", what, status, text)
		}
		return nil
	}
}

func leftOut(s *soak, ctx context.Context, e *engine, _ *rand.Rand) error {
	if !s.state.leaveOut(e) {
		return nil // another one is
	}
	return s.reload(ctx, variant{}, false)
}

func putBack(s *soak, ctx context.Context, e *engine) error {
	if !s.state.putBack(e) {
		return nil
	}
	return s.reload(ctx, variant{}, false)
}

// chaos makes trouble every one to three seconds until over is done, then undoes
// all that is left. Which comes when is decided by the seed alone.
func (s *soak) chaos(ctx, over context.Context) error {
	r := rand.New(rand.NewPCG(s.seed, 2))
	var wg sync.WaitGroup
	taken, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer taken.Close()
	for s.state.err() == nil {
		select {
		case <-over.Done():
			wg.Wait()
			return errors.Join(s.state.err(), s.reload(ctx, variant{}, false))
		case <-time.After(time.Second + time.Duration(r.IntN(int(2*time.Second)))):
		}
		// All that is drawn is drawn here, so that it does not depend on what
		// else goes on.
		lasts := 500*time.Millisecond + time.Duration(r.IntN(int(6*time.Second)))
		first, which, own := r.IntN(engines), r.IntN(len(troubles)+4), rand.New(rand.NewPCG(r.Uint64(), 3))
		if which >= len(troubles) {
			wg.Go(func() { s.state.fail(s.change(ctx, own, taken.Addr().String())) })
			continue
		}
		e := s.state.choose(s.engines, first)
		if e == nil {
			continue // enough of them have trouble
		}
		wg.Go(func() {
			s.state.fail(s.trouble(ctx, over, &troubles[which], e, own, lasts))
			s.state.free(e)
		})
	}
	wg.Wait()
	return s.state.err()
}

// trouble makes one trouble for a while, or until over is done.
func (s *soak) trouble(ctx, over context.Context, t *trouble, e *engine, r *rand.Rand, lasts time.Duration) error {
	end := s.report.trouble(e.address, t.name, t.excuses)
	defer end()
	if err := t.do(s, ctx, e, r); err != nil {
		return fmt.Errorf("%s of %s: %w", t.name, e.address, err)
	}
	select {
	case <-over.Done():
	case <-time.After(lasts):
	}
	if err := t.undo(s, ctx, e); err != nil {
		return fmt.Errorf("after %s of %s: %w", t.name, e.address, err)
	}
	return nil
}

// change loads a config that differs in something, or one that must be refused.
func (s *soak) change(ctx context.Context, r *rand.Rand, taken string) error {
	v := variant{version: r.IntN(1e6)}
	name, refused := "", false
	switch r.IntN(6) {
	case 0:
		name = "reload: a header"
	case 1:
		name, v.extra = "reload: one more model", true
	case 2:
		name, v.weights = "reload: weights and profile", true
	case 3:
		name, v.fault, refused = "refused reload: an unknown option", "nonsense", true
	case 4:
		name, v.fault, refused = "refused reload: a missing file", "endpoint https://127.0.0.1:1 {\n tls_ca /nonexistent\n}", true
	case 5:
		name, v.listen, refused = "refused reload: a taken port", taken, true
	}
	s.report.event(name)
	return s.reload(ctx, v, refused)
}

// reload loads a config, which the gateway must take or refuse.
func (s *soak) reload(ctx context.Context, v variant, refused bool) error {
	s.state.loading.Lock()
	defer s.state.loading.Unlock()
	v.without = s.state.without()
	if !refused {
		defer s.report.reload()()
	}
	status, text, err := s.gateway.reload(ctx, s.site.caddyfile(v))
	if err != nil {
		return fmt.Errorf("reload: %w", err)
	}
	if (status == http.StatusOK) == refused {
		return fmt.Errorf("reload of %+v: status %d: %s", v, status, text)
	}
	return nil
}

// chaosState is who has trouble.
type chaosState struct {
	loading sync.Mutex // one reload at a time

	mu     sync.Mutex
	busy   map[*engine]bool
	out    *engine // of the config
	faults []error
}

// choose takes the first engine from a number on that has no trouble, or nil.
func (c *chaosState) choose(all []*engine, first int) *engine {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.busy) >= engines-wellAtLeast {
		return nil
	}
	for i := range all {
		if e := all[(first+i)%len(all)]; !c.busy[e] {
			c.busy[e] = true
			return e
		}
	}
	return nil
}

func (c *chaosState) free(e *engine) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.busy, e)
}

func (c *chaosState) leaveOut(e *engine) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.out != nil {
		return false
	}
	c.out = e
	return true
}

func (c *chaosState) putBack(e *engine) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.out != e {
		return false
	}
	c.out = nil
	return true
}

// without is the engine that the config leaves out, "" if none.
func (c *chaosState) without() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.out == nil {
		return ""
	}
	return c.out.address
}

func (c *chaosState) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.faults = append(c.faults, err)
	}
}

func (c *chaosState) err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return errors.Join(c.faults...)
}
