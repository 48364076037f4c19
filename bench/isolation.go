package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Isolation is measured on engines with few slots and a queue of their own, first
// in, first out, that 500 clients of the lowest band keep full, each with a request
// at a time.
const (
	slots         = 8 // of each of the replicas
	slotTime      = 500 * time.Millisecond
	floodSize     = 500
	chatRate      = 8           // requests of the highest band a second
	isolationName = "isolation" // for -only
	isolationUp   = 10 * time.Second
	isolationD    = 40 * time.Second

	isolationLimit  = 1.2  // of the idle 99th percentile
	throughputLeast = 0.88 // of that without admission
)

// slotted is an engine that runs so many requests at a time; a channel lets in
// first who came first.
type slotted struct {
	running chan struct{}

	mu      sync.Mutex
	waiting int
}

// ServeHTTP implements http.Handler.
func (s *slotted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/metrics" {
		s.mu.Lock()
		defer s.mu.Unlock()
		_, _ = fmt.Fprintf(w, "vllm:num_requests_running %d\nvllm:num_requests_waiting %d\nvllm:kv_cache_usage_perc 0\n", len(s.running), s.waiting)
		return
	}
	if _, err := io.Copy(io.Discard, r.Body); err != nil || r.Method != http.MethodPost {
		http.NotFound(w, r)
		return
	}
	s.wait(1)
	select {
	case s.running <- struct{}{}:
		s.wait(-1)
	case <-r.Context().Done():
		s.wait(-1)
		return
	}
	time.Sleep(slotTime)
	<-s.running
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(plainAnswer)
}

func (s *slotted) wait(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting += n
}

// flood is what a run of both bands gave.
type flood struct {
	p50, p99 time.Duration // of the highest band
	rate     float64       // requests of both bands that ended a second
}

// isolation prints what the highest band sees idle, and beside the lowest without
// and with admission. missed is what is not as promised.
func isolation(ctx context.Context, binary string, addresses []string) (missed, err error) {
	ctx, cancel := context.WithCancel(ctx)
	var all children
	defer all.end(cancel)
	option := "llmgw {\n\t\tmodel m {\n\t\t\tendpoint " + strings.Join(addresses, " ") + "\n\t\t}\n\t}"
	without, err := startProxy(ctx, &all, binary, "route {\n\t\tllm_api\n\t\tllm_proxy\n\t}", option)
	if err != nil {
		return nil, err
	}
	with, err := startProxy(ctx, &all, binary, "llm {\n\t\tband {http.request.header.X-Band}\n\t}", option)
	if err != nil {
		return nil, err
	}
	fmt.Printf("isolation: %d engines of %d slots, %v a request, %d a second of platinum, %d clients of bronze\n", replicas, slots, slotTime, chatRate, floodSize)
	var results [3]flood
	for i, c := range []struct {
		name   string
		p      *proxy
		bronze int
	}{{"idle", with, 0}, {"no admission", without, floodSize}, {"admission", with, floodSize}} {
		if results[i], err = measureFlood(ctx, c.p.url, c.bronze); err != nil {
			return nil, fmt.Errorf("isolation, %s: %w", c.name, err)
		}
		r := results[i]
		fmt.Printf("  %-14s platinum p50 %6d ms, p99 %6d ms, %.2f of idle; both bands %.1f requests/s\n",
			c.name, r.p50.Milliseconds(), r.p99.Milliseconds(), float64(r.p99)/float64(results[0].p99), r.rate)
	}
	ratio, kept := float64(results[2].p99)/float64(results[0].p99), results[2].rate/results[1].rate
	fmt.Printf("  ratio %.2f (promised at most %.2f), throughput %.2f of that without (promised at least %.2f)\n", ratio, isolationLimit, kept, throughputLeast)
	if ratio > isolationLimit || kept < throughputLeast {
		missed = fmt.Errorf("isolation: ratio %.2f, throughput %.2f", ratio, kept)
	}
	return missed, nil
}

// measureFlood runs both bands.
func measureFlood(ctx context.Context, url string, bronze int) (f flood, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := client(2 * floodSize)
	defer c.CloseIdleConnections()
	begin := time.Now()
	var mu sync.Mutex
	var took []time.Duration
	var failed []error
	done := 0
	// Counts only what began or ended after the warm-up, and before the end.
	ask := func(ctx context.Context, band string) {
		start := time.Now()
		err := once(ctx, c, url, "X-Band", band)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case ctx.Err() != nil:
		case err != nil:
			failed = append(failed, err)
			cancel()
		default:
			if d := time.Since(begin); d > isolationUp && d <= isolationUp+isolationD {
				done++
			}
			if band == "platinum" && start.Sub(begin) > isolationUp {
				took = append(took, time.Since(start))
			}
		}
	}
	var flooding, chatting sync.WaitGroup
	for range bronze {
		flooding.Go(func() {
			for ctx.Err() == nil && time.Since(begin) < isolationUp+isolationD {
				ask(ctx, "bronze")
			}
		})
	}
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same arrivals in each run
	for time.Since(begin) < isolationUp+isolationD && ctx.Err() == nil {
		time.Sleep(time.Duration(random.ExpFloat64() * float64(time.Second/chatRate)))
		chatting.Go(func() { ask(ctx, "platinum") })
	}
	chatting.Wait()
	cancel()
	flooding.Wait()
	if err := errors.Join(failed...); err != nil || len(took) == 0 {
		return f, fmt.Errorf("%d requests failed: %w", len(failed), err)
	}
	slices.Sort(took)
	return flood{p50: took[len(took)/2], p99: took[len(took)*99/100], rate: float64(done) / isolationD.Seconds()}, nil
}
