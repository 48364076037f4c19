//go:build engines

package e2e

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// cutter passes connections on to another address, or cuts them.
type cutter struct {
	ln     net.Listener
	target string

	mu     sync.Mutex
	open   map[net.Conn]bool
	closed bool
	after  int64 // how many bytes each passes on before it is cut; 0 is no limit
}

func newCutter(target string) (*cutter, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := &cutter{ln: ln, target: target, open: make(map[net.Conn]bool)}
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go c.pass(conn)
		}
	}()
	return c, nil
}

func (c *cutter) address() string { return c.ln.Addr().String() }

func (c *cutter) pass(conn net.Conn) {
	defer conn.Close()
	c.mu.Lock()
	closed, after := c.closed, c.after
	c.open[conn] = true
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.open, conn)
		c.mu.Unlock()
	}()
	if closed {
		return
	}
	to, err := net.Dial("tcp", c.target)
	if err != nil {
		return
	}
	defer to.Close()
	go func() { _, _ = io.Copy(to, conn) }()
	if after > 0 {
		_, _ = io.CopyN(conn, to, after)
		return
	}
	_, _ = io.Copy(conn, to)
}

// cut ends all connections, and those that come, until it is undone.
func (c *cutter) cut(closed bool, after int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed, c.after = closed, after
	for conn := range c.open {
		conn.Close()
	}
}

// followed waits until the events of a replica are followed, or not.
func followed(t *testing.T, url string, want bool) {
	t.Helper()
	eventually(t, patience, func() error {
		r, err := lab.replicaAt(url)
		if err != nil {
			return err
		}
		if len(r.KVEvents) != 1 || (r.KVEvents[0].State == "live") != want {
			return errStill("%+v", r.KVEvents)
		}
		return nil
	})
}

// shares are what each replica is said to hold of a prompt.
func shares(t *testing.T, body object) map[string]float64 {
	t.Helper()
	var e struct {
		Candidates []struct {
			Replica string
			Cached  *float64
		}
	}
	posted(t, lab.adminURL+"/llmgw/explain", body).into(t, &e)
	all := make(map[string]float64)
	for _, c := range e.Candidates {
		if c.Cached != nil {
			all["http://"+c.Replica] = *c.Cached
		}
	}
	return all
}

// cached sends a request and returns where it went, why, and of how many tokens of its prompt the engine says
// that it had.
func cached(t *testing.T, body object) (url, decision string, cached, tokens int) {
	t.Helper()
	res := posted(t, lab.gatewayURL+"/v1/chat/completions", body)
	u := usageOf(string(res.body))
	if u == nil || u.Details == nil {
		t.Fatalf("no usage in %s", res.body)
	}
	return "http://" + res.header.Get("x-llmgw-replica"), res.header.Get("x-llmgw-cache-decision"), u.Details.Cached, u.Prompt
}

func conversation(model, system, user string) object {
	return object{"model": model, "max_tokens": 4, "messages": []object{{"role": "system", "content": system}, {"role": "user", "content": user}}}
}

// TestKVEventsEqualTheEngines: over 200 requests what is said to be cached is what vLLM finds, its own
// counters say so too, and a chat goes where its first turn went.
func TestKVEventsEqualTheEngines(t *testing.T) {
	for _, url := range lab.vllmURL {
		followed(t, url, true)
	}
	hitsBefore := mustMetric(t, lab.vllmURL[0], "vllm:prefix_cache_hits_total") + mustMetric(t, lab.vllmURL[1], "vllm:prefix_cache_hits_total")
	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 2))
	seed := random.IntN(1000)
	said, found, wrong, hits, stale := 0, 0, 0, 0, 0
	const requests = 200
	for range requests {
		system, user := random.IntN(4), random.IntN(12)
		body := conversation(told, strings.Repeat(fmt.Sprintf("You are %d of %d. ", system, seed), 12+6*system), strings.Repeat(fmt.Sprintf("tell %d ", user), 20))
		before := shares(t, body)
		url, decision, n, tokens := cached(t, body)
		want := int(before[url]*float64(tokens) + 0.5)
		if n > 0 {
			hits++
		}
		if want != n {
			wrong++
			t.Logf("%d of %d tokens were cached, %d said", n, tokens, want)
		}
		if decision == "stale" {
			stale++
		}
		said, found = said+want, found+n
	}
	counted := mustMetric(t, lab.vllmURL[0], "vllm:prefix_cache_hits_total") + mustMetric(t, lab.vllmURL[1], "vllm:prefix_cache_hits_total") - hitsBefore
	t.Logf("of %d requests %d had tokens cached: %d in all, %.0f by the engines' counters, %d said before; %d differ, %d stale", requests, hits, found, counted, said, wrong, stale)
	if hits < requests/2 || wrong > requests/50 || stale > requests/50 || counted != float64(found) {
		t.Error("they differ")
	}

	talk := []object{{"role": "user", "content": strings.Repeat(fmt.Sprintf("a talk of %d. ", seed), 30)}}
	body := object{"model": told, "max_tokens": 20, "messages": talk}
	first, _, _, _ := cached(t, body)
	body["messages"] = append(talk, object{"role": "assistant", "content": "well"}, object{"role": "user", "content": "and then?"})
	second, decision, n, _ := cached(t, body)
	if second != first || decision != "cache_hit" || n == 0 {
		t.Errorf("the second turn goes to %s, %s, with %d tokens cached; the first went to %s", second, decision, n, first)
	}
}

// TestKVEventsNoFalseCredit: what a reset clears, or a restart loses, or may have changed while events were
// lost, is not credited.
func TestKVEventsNoFalseCredit(t *testing.T) {
	p := startDoomed(t, lab.doomedOptions...)
	followed(t, lab.doomedURL, true)
	prompt := func(i int) object {
		return conversation(reborn, strings.Repeat(fmt.Sprintf("Number %d. ", i), 30), "well?")
	}
	warm := func(i int) {
		t.Helper()
		cached(t, prompt(i))
		eventually(t, patience, func() error {
			if s := shares(t, prompt(i))[lab.doomedURL]; s < 0.5 {
				return errStill("%v of it is said to be cached", s)
			}
			return nil
		})
	}
	credit := func(what string, i int) {
		t.Helper()
		before := shares(t, prompt(i))[lab.doomedURL]
		_, decision, n, tokens := cached(t, prompt(i))
		if want := int(before*float64(tokens) + 0.5); want > n {
			t.Errorf("%s: %d tokens were said to be cached, %d were: %s", what, want, n, decision)
		}
	}
	warm(1)
	posted(t, lab.doomedURL+"/reset_prefix_cache", "")
	cached(t, prompt(2)) // the event comes with the next step
	eventually(t, patience, func() error {
		if s := shares(t, prompt(1))[lab.doomedURL]; s > 0 {
			return errStill("%v is credited after a reset", s)
		}
		return nil
	})
	credit("reset", 1)

	warm(3)
	lab.kvProxies[0].cut(true, 0)
	followed(t, lab.doomedURL, false)
	posted(t, lab.doomedURL+"/reset_prefix_cache", "")
	cached(t, prompt(4)) // nobody hears of it
	lab.kvProxies[0].cut(false, 0)
	followed(t, lab.doomedURL, true)
	credit("gap", 3)
	if s := shares(t, prompt(4))[lab.doomedURL]; s < 0.5 {
		t.Errorf("what was stored in a gap is not known: %v", s)
	}

	warm(5)
	lab.kvProxies[1].cut(false, 700) // each replay ends in its middle
	lab.kvProxies[0].cut(false, 0)
	followed(t, lab.doomedURL, false)
	posted(t, lab.doomedURL+"/reset_prefix_cache", "")
	if _, decision, n, _ := cached(t, prompt(5)); decision != "stale" || n != 0 {
		t.Errorf("while replays are cut: %s, %d tokens cached", decision, n)
	}
	lab.kvProxies[1].cut(false, 0)
	followed(t, lab.doomedURL, true)
	credit("cut replays", 5)

	warm(6)
	_ = syscall.Kill(-p.pid, syscall.SIGKILL)
	<-p.done
	followed(t, lab.doomedURL, false)
	startDoomed(t, lab.doomedOptions...)
	followed(t, lab.doomedURL, true)
	credit("restart", 6)
}
