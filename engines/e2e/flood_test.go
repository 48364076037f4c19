//go:build engines

package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestFlood: 50 clients of the lowest band, on engines that run four requests each, cost
// the highest one what it costs to run beside three others, and not their queue.
func TestFlood(t *testing.T) {
	const clients = 50
	idle := firstTokens(t, lab.bandsURL)
	run := func(url string) time.Duration {
		defer floodFrom(t, url, clients)()
		return firstTokens(t, url)
	}
	// What engines run at once is learnt in the first.
	without := run(lab.openURL)
	with := run(lab.bandsURL)
	t.Logf("median time to first token of platinum: idle %v, beside %d clients of bronze %v without admission, %v with it", idle, clients, without, with)
	if with > without/5 || with > 10*idle {
		t.Errorf("with admission %v, want at most a fifth of %v and ten times %v", with, without, idle)
	}
}

// floodFrom keeps so many clients of bronze busy until the returned function is
// called, which reports those that were not served.
func floodFrom(t *testing.T, url string, clients int) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	begun := make(chan struct{}, clients)
	for i := range clients {
		all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				body := chat("tiny", fmt.Sprintf("%d, %d: tell a story", i, n), 64, object{"ignore_eos": true})
				if n == 0 {
					begun <- struct{}{}
				}
				res, err := do(ctx, url+"/v1/chat/completions", body, "X-Band", "bronze")
				if err != nil {
					if ctx.Err() == nil {
						t.Error(err)
					}
					return
				}
				answer, err := io.ReadAll(res.Body)
				res.Body.Close()
				if err == nil && res.StatusCode != http.StatusOK {
					t.Errorf("status %d: %s", res.StatusCode, answer)
					return
				}
			}
		})
	}
	for range clients {
		<-begun
	}
	eventually(t, patience, func() error {
		for _, url := range lab.vllmURL {
			if n, err := metric(url, "vllm:num_requests_running"); err != nil || n < 1 {
				return errStill("%v running at %s: %v", n, url, err)
			}
		}
		return nil
	})
	return func() {
		cancel()
		all.Wait()
	}
}

// firstTokens returns the median time to the first token of some requests of the
// highest band, one after the other.
func firstTokens(t *testing.T, url string) time.Duration {
	t.Helper()
	var took []time.Duration
	for i := range 30 {
		start := time.Now()
		res, err := do(t.Context(), url+"/v1/chat/completions", chat("tiny", fmt.Sprintf("question %d", i), 8, object{"stream": true}), "X-Band", "platinum")
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(res.Body)
		first := time.Duration(0)
		for lines.Scan() {
			if first == 0 && strings.HasPrefix(lines.Text(), "data: ") {
				first = time.Since(start)
			}
		}
		res.Body.Close()
		if res.StatusCode != http.StatusOK || first == 0 || lines.Err() != nil {
			t.Fatalf("status %d, no token, or cut: %v", res.StatusCode, lines.Err())
		}
		took = append(took, first)
	}
	slices.Sort(took)
	return took[len(took)/2]
}
