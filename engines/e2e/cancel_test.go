//go:build engines

package e2e

import (
	"bufio"
	"context"
	"fmt"
	"strings"
	"testing"
)

// TestCancelStopsEngine: when a client leaves its stream, the engine stops
// working on it: of the tokens that it would have made, most are never made.
func TestCancelStopsEngine(t *testing.T) {
	const tokens = 1500
	for _, c := range []struct{ name, url, model, running, made string }{
		{"vLLM", lab.vllmURL[0], "tiny", "vllm:num_requests_running", "vllm:generation_tokens_total"},
		{"llama.cpp", lab.llamaURL, "smollm2-135m", "llamacpp:requests_processing", "llamacpp:tokens_predicted_total"},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := mustMetric(t, c.url, c.made)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			res, err := do(ctx, lab.gatewayURL+"/v1/chat/completions",
				chat(c.model, "tell a very long story", tokens, object{"stream": true, "ignore_eos": true}),
				"x-llmgw-replica", strings.TrimPrefix(c.url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			lines := bufio.NewScanner(res.Body)
			for range 10 {
				if !lines.Scan() {
					t.Fatalf("the stream ended early: %v", lines.Err())
				}
			}
			if n := mustMetric(t, c.url, c.running); n != 1 {
				t.Fatalf("%v requests run in mid-stream, want 1", n)
			}
			cancel()
			eventually(t, patience, func() error {
				if n, err := metric(c.url, c.running); err != nil || n != 0 {
					return errStill("%v requests run: %v", n, err)
				}
				return nil
			})
			// llama.cpp counts when a slot is free again, so not before that.
			made := mustMetric(t, c.url, c.made) - before
			if made < 1 || made > tokens/2 {
				t.Errorf("the engine made %v tokens, want some, but far less than %d", made, tokens)
			}
			t.Logf("%v of %d tokens were made", made, tokens)
		})
	}
}

// TestCancelledIsLogged: such a request's outcome is in the log.
func TestCancelledIsLogged(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	res, err := do(ctx, lab.gatewayURL+"/v1/chat/completions",
		chat("tiny", "tell a very long story", 1500, object{"stream": true, "ignore_eos": true}))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if !bufio.NewScanner(res.Body).Scan() {
		t.Fatal("no event came")
	}
	cancel()
	eventually(t, patience, func() error {
		line, err := logged(res.Header.Get("x-request-id"))
		if err == nil && line.Outcome != "cancelled" {
			err = fmt.Errorf("%w: outcome %q", errHopeless, line.Outcome)
		}
		return err
	})
}

func mustMetric(t *testing.T, url, name string, labels ...string) float64 {
	t.Helper()
	v, err := metric(url, name, labels...)
	if err != nil {
		t.Fatal(err)
	}
	return v
}
