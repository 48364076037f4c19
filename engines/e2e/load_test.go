//go:build engines

package e2e

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
)

// busy keeps an engine's batch full and its queue not empty, behind the
// gateway's back, until the returned function is called.
func busy(t *testing.T, url, model string, streams, tokens int) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for i := range streams {
		all.Go(func() {
			body := chat(model, fmt.Sprintf("%d: tell a long story", i), tokens, object{"stream": true, "ignore_eos": true})
			for ctx.Err() == nil {
				res, err := do(ctx, url+"/v1/chat/completions", body)
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, res.Body) // it ends by the cancel
				res.Body.Close()
			}
		})
	}
	return func() {
		cancel()
		all.Wait()
		eventually(t, patience, func() error {
			running, err := metric(url, "vllm:num_requests_running")
			waiting, err2 := metric(url, "vllm:num_requests_waiting")
			if err != nil || err2 != nil || running+waiting > 0 {
				return errStill("%v running, %v waiting at %s: %v %v", running, waiting, url, err, err2)
			}
			return nil
		})
	}
}

// TestLoadFollowsMetrics: an engine that is busy with what the gateway never
// saw gets no more work while another is idle.
func TestLoadFollowsMetrics(t *testing.T) {
	const requests, enough = 20, 18
	stop := busy(t, lab.vllmURL[0], "tiny", 10, 1500)
	defer stop()
	queues := func() error {
		x, err := lab.replicaAt(lab.vllmURL[0])
		if err == nil && (x.Waiting == nil || *x.Waiting < 1 || x.Running == nil || *x.Running < 4) {
			err = errStill("%v", x)
		}
		return err
	}
	eventually(t, patience, queues)
	idle, count := strings.TrimPrefix(lab.vllmURL[1], "http://"), 0
	for i := range requests {
		res := posted(t, lab.gatewayURL+"/v1/chat/completions", chat("tiny", fmt.Sprintf("question %d", i), 4, nil))
		if res.header.Get("x-llmgw-replica") == idle {
			count++
		}
	}
	if count < enough {
		t.Errorf("%d of %d requests went to the idle engine, want at least %d", count, requests, enough)
	}
	t.Logf("%d of %d requests went to the idle engine", count, requests)
	if err := queues(); err != nil {
		t.Errorf("the busy engine was not busy until the end: %v", err)
	}
}

// TestBothEnginesServe: without such a load both get work.
func TestBothEnginesServe(t *testing.T) {
	// The gateway may not have heard yet that an earlier test's load is gone.
	for _, url := range lab.vllmURL {
		eventually(t, patience, func() error {
			x, err := lab.replicaAt(url)
			if err == nil && (x.Waiting == nil || x.Running == nil || *x.Waiting+*x.Running > 0) {
				err = errStill("%v", x)
			}
			return err
		})
	}
	seen := make(map[string]int)
	for i := range 40 {
		res := posted(t, lab.gatewayURL+"/v1/chat/completions", chat("tiny", fmt.Sprintf("question %d", i), 1, nil))
		seen[res.header.Get("x-llmgw-replica")]++
	}
	if len(seen) != 2 {
		t.Errorf("40 requests to two idle engines went to %v", seen)
	}
}
