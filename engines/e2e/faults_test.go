//go:build engines

package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// startDoomed starts the engine that is to die, and waits until the gateway
// sends it requests.
func startDoomed(t *testing.T, options ...string) *process {
	t.Helper()
	_, port, _ := strings.Cut(strings.TrimPrefix(lab.doomedURL, "http://"), ":")
	p, err := lab.keeper.start("vllm-doomed", append([]string{scripts + "/vllm.sh", "serve", port}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	p.mayEnd = true
	t.Cleanup(func() {
		_ = syscall.Kill(-p.pid, syscall.SIGKILL) // unless it has ended
		<-p.done
	})
	if err := p.await(startPatience, func() error { return serves(lab.doomedURL + "/v1/models") }); err != nil {
		t.Fatal(err)
	}
	back := time.Now()
	eventually(t, patience, func() error {
		res := post(t, lab.gatewayURL+"/v1/chat/completions", chat(doomed, "hello", 1, nil))
		if "http://"+res.header.Get("x-llmgw-replica") != lab.doomedURL {
			return errStill("served by %s", res.header.Get("x-llmgw-replica"))
		}
		return nil
	})
	t.Logf("in use %v after it served", time.Since(back).Round(time.Millisecond))
	return p
}

// crowd are clients that ask for short answers one after the other.
type crowd struct {
	ended   func()
	asked   atomic.Int64
	aborted atomic.Int64 // answers that vLLM itself cut short as it ended
}

func newCrowd(t *testing.T) *crowd {
	ctx, stop := context.WithCancel(t.Context())
	var c crowd
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				res, err := do(t.Context(), lab.gatewayURL+"/v1/chat/completions", chat(doomed, "hello", 4, nil))
				if err != nil {
					t.Errorf("a request beside the fault: %v", err)
					return
				}
				text, err := io.ReadAll(res.Body)
				res.Body.Close()
				if c.asked.Add(1); err != nil || res.StatusCode != http.StatusOK {
					t.Errorf("a request beside the fault: %s %s, %v", res.Status, text, err)
				}
				if strings.Contains(string(text), `"finish_reason":"abort"`) {
					c.aborted.Add(1)
				}
			}
		})
	}
	c.ended = func() { stop(); wg.Wait() }
	return &c
}

// since waits for so many more requests.
func (c *crowd) since(t *testing.T, n int64) {
	t.Helper()
	from := c.asked.Load()
	eventually(t, patience, func() error {
		if asked := c.asked.Load() - from; asked < n {
			return errStill("%d requests of %d", asked, n)
		}
		return nil
	})
}

// longStream opens a stream on the engine that is to die.
func longStream(t *testing.T, tokens int) (*http.Response, *bufio.Reader) {
	t.Helper()
	res, err := do(t.Context(), lab.gatewayURL+"/v1/chat/completions",
		chat(doomed, "tell a very long story", tokens, object{"stream": true, "ignore_eos": true}),
		"x-llmgw-replica", strings.TrimPrefix(lab.doomedURL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	if at := "http://" + res.Header.Get("x-llmgw-replica"); at != lab.doomedURL {
		t.Fatalf("the stream is at %s", at)
	}
	r := bufio.NewReader(res.Body)
	for range 5 {
		if line, err := r.ReadString('\n'); err != nil {
			t.Fatalf("the stream ended early: %q, %v", line, err)
		}
	}
	return res, r
}

// TestEngineDies: what runs on an engine when it dies is lost and seen to be;
// what comes then goes elsewhere, and back when it is back.
func TestEngineDies(t *testing.T) {
	t.Run("SIGKILL", func(t *testing.T) {
		p := startDoomed(t)
		c := newCrowd(t)
		defer c.ended()
		c.since(t, 20)
		res, stream := longStream(t, 1500)
		if err := syscall.Kill(-p.pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		rest, err := io.ReadAll(stream)
		if err == nil || strings.Contains(string(rest), "[DONE]") || !strings.Contains(string(rest), `"code":"stream_broken"`) {
			t.Errorf("the stream ended with %v after %q", err, rest)
		}
		outcomeIs(t, res, "broken")
		c.since(t, 100)
		if n := c.aborted.Load(); n > 0 {
			t.Errorf("%d answers were cut", n)
		}
		startDoomed(t)
		c.since(t, 20)
	})
	t.Run("SIGTERM", func(t *testing.T) {
		p := startDoomed(t)
		c := newCrowd(t)
		defer c.ended()
		c.since(t, 20)
		res, stream := longStream(t, 1500)
		terminate(t, p)
		// vLLM ends it with "abort" and [DONE], as if it were whole, or with an error of
		// its own.
		rest, err := io.ReadAll(stream)
		said := strings.Contains(string(rest), `"finish_reason":"abort"`) || strings.Contains(string(rest), "EngineCore encountered an issue")
		if strings.Contains(string(rest), "[DONE]") || err == nil && !said {
			t.Errorf("the stream ended with %v after %q", err, rest)
		}
		outcomeIs(t, res, "engine_error", "broken")
		c.since(t, 100)
		t.Logf("%d of the other answers were cut by vLLM", c.aborted.Load())
		if n := c.aborted.Load(); n > 4 {
			t.Errorf("%d answers were cut, more than there can have been under way", n)
		}
	})
	t.Run("SIGTERM with time to drain", func(t *testing.T) {
		p := startDoomed(t, "--shutdown-timeout", "30")
		c := newCrowd(t)
		defer c.ended()
		c.since(t, 20)
		_, stream := longStream(t, 400)
		terminate(t, p)
		c.since(t, 50) // while it refuses and its health page says 200
		rest, err := io.ReadAll(stream)
		if err != nil || !strings.HasSuffix(string(rest), "data: [DONE]\n\n") || !strings.Contains(string(rest), `"finish_reason":"length"`) {
			t.Errorf("the stream ended with %v after %q", err, rest[max(0, len(rest)-500):])
		}
		// One that comes in that very moment vLLM may drop all the same.
		t.Logf("%d of the other answers were cut by vLLM", c.aborted.Load())
		if n := c.aborted.Load(); n > 4 {
			t.Errorf("%d answers were cut, more than there can have been on their way", n)
		}
		c.since(t, 50)
	})
}

func terminate(t *testing.T, p *process) {
	t.Helper()
	if err := syscall.Kill(p.pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
}

func outcomeIs(t *testing.T, res *http.Response, want ...string) {
	t.Helper()
	eventually(t, patience, func() error {
		line, err := logged(res.Header.Get("x-request-id"))
		if err != nil {
			return err
		}
		for _, w := range want {
			if line.Outcome == w {
				return nil
			}
		}
		return fmt.Errorf("%w: outcome %q, want one of %q", errHopeless, line.Outcome, want)
	})
}

// TestIdleConnections: vLLM closes a connection that is unused for 5 s. Two
// hundred clients come back around that time.
func TestIdleConnections(t *testing.T) {
	var wg sync.WaitGroup
	var failed atomic.Int64
	for i := range 200 {
		wg.Go(func() {
			for round := range 2 {
				if round > 0 {
					// From before the gateway's own limit to behind vLLM's.
					<-time.After(3800*time.Millisecond + time.Duration(i)*7*time.Millisecond)
				}
				res, err := do(t.Context(), lab.gatewayURL+"/v1/chat/completions", chat("tiny", "hello", 1, nil))
				if err != nil {
					failed.Add(1)
					t.Error(err)
					return
				}
				text, err := io.ReadAll(res.Body)
				res.Body.Close()
				if err != nil || res.StatusCode != http.StatusOK {
					failed.Add(1)
					t.Errorf("round %d: %s %s, %v", round, res.Status, text, err)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d of 400 requests failed", failed.Load())
}
