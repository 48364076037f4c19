// Command bench measures what the gateway costs beside Caddy's plain
// reverse_proxy with least_conn, in the same binary and the same run: CPU time
// per request and per streamed token, latency, memory. Milliseconds differ from
// machine to machine, ratios hardly do. It also measures how little of a flood of
// one priority band another one notices.
//
//	go run ./bench [-binary bin/llmgw] [-runs 8] [-seconds 4] [-only token] [-check]
//	go run ./bench -routing [-fleets 4,16] [-only agentic]
//
// Four fake replicas in a process of their own stand behind each proxy; all
// traffic is on loopback.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// replicas is the number of fake replicas.
const replicas = 4

func main() {
	binary := flag.String("binary", filepath.Join("bin", "llmgw"), "the gateway")
	runs := flag.Int("runs", 8, "measurements of each, in turn")
	seconds := flag.Int("seconds", 4, "length of one measurement")
	only := flag.String("only", "", "measure what has this in its name")
	check := flag.Bool("check", false, "fail if a ratio is above what is promised")
	routes := flag.Bool("routing", false, "measure routing policies instead, beside the bound; -only then names a workload")
	fleets := flag.String("fleets", "4,16", "with -routing: how many simulated replicas")
	upstream := flag.Bool("upstream", false, "be the fake replicas (used by the benchmark itself)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch {
	case *upstream:
		err = serveReplicas(ctx)
	case *routes:
		err = routing(ctx, *binary, *only, *fleets)
	default:
		err = bench(ctx, *binary, *only, *runs, time.Duration(*seconds)*time.Second, *check)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1) //nolint:gocritic // the deferred stop only gives signals back
	}
}

// promise is a measured figure and what is promised of it beside plain Caddy's.
type promise struct {
	name, unit string
	ratio      float64
	measure    func(ctx context.Context, p *proxy, d time.Duration) (float64, error)
	fresh      bool // each measurement wants processes that have done nothing yet
}

var promises = []promise{
	{"CPU per request", "µs", 0.80, cpuPerRequest, false},
	{"CPU per token, 500 streams", "µs", 0.95, cpuPerToken, false},
	{"latency, p50 at 200/s", "µs", 1.00, latency, false},
	{"memory per stream, of 1,000", "KiB", 1.00, memoryPerStream, true},
}

// overheadLimit is what is promised of llmgw_overhead_seconds at the 99th
// percentile.
const overheadLimit = 2 * time.Millisecond

func bench(ctx context.Context, binary, only string, runs int, d time.Duration, check bool) error {
	isolated := only == "" || only == isolationName
	if !isolated && !slices.ContainsFunc(promises, func(p promise) bool { return strings.Contains(p.name, only) }) {
		return fmt.Errorf("-only %q: nothing that is measured has this in its name", only)
	}
	ctx, cancel := context.WithCancel(ctx)
	var all children
	defer all.end(cancel)
	addresses, err := startReplicas(ctx, &all)
	if err != nil {
		return err
	}
	start := func(ctx context.Context, c *children) (pair [2]*proxy, err error) {
		list := strings.Join(addresses[:replicas], " ")
		if pair[0], err = startProxy(ctx, c, binary, "reverse_proxy "+list+" {\n\t\tlb_policy least_conn\n\t}", ""); err == nil {
			pair[1], err = startProxy(ctx, c, binary, "llm", "llmgw {\n\t\tmodel m {\n\t\t\tendpoint "+list+"\n\t\t}\n\t}")
		}
		return pair, err
	}
	pair, err := start(ctx, &all)
	if err != nil {
		return err
	}
	var missed []error
	for _, p := range promises {
		if !strings.Contains(p.name, only) {
			continue
		}
		var values [2][]float64
		var ratios []float64
		for run := range runs + 1 {
			v, err := p.once(ctx, pair, run%2 == 1, d, start)
			if err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
			if run == 0 {
				continue // warm-up
			}
			values[0], values[1] = append(values[0], v[0]), append(values[1], v[1])
			ratios = append(ratios, v[1]/v[0])
		}
		r := median(ratios)
		fmt.Printf("%-28s plain Caddy %7.1f %s, llmgw %7.1f %s, ratio %.2f (%.2f to %.2f, promised at most %.2f)\n",
			p.name, median(values[0]), p.unit, median(values[1]), p.unit, r, slices.Min(ratios), slices.Max(ratios), p.ratio)
		if r > p.ratio {
			missed = append(missed, fmt.Errorf("%s: ratio %.2f is above %.2f", p.name, r, p.ratio))
		}
	}
	if isolated {
		m, err := isolation(ctx, binary, addresses[replicas:])
		if err != nil {
			return err
		}
		missed = append(missed, m)
	}
	if only == isolationName {
		return reported(missed, check)
	}
	p99, err := pair[1].overhead(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("%-28s at most %v (promised at most %v)\n", "llmgw_overhead_seconds, p99", p99, overheadLimit)
	if p99 > overheadLimit {
		missed = append(missed, fmt.Errorf("overhead %v is above %v", p99, overheadLimit))
	}
	return reported(missed, check)
}

// reported returns what is not as promised, if that is to fail the run.
func reported(missed []error, check bool) error {
	if check {
		return errors.Join(missed...)
	}
	return nil
}

// once measures both proxies, one after the other. A machine that others use too
// drifts, so swap is to be true every other time.
func (p *promise) once(ctx context.Context, pair [2]*proxy, swap bool, d time.Duration, start func(context.Context, *children) ([2]*proxy, error)) (v [2]float64, err error) {
	if p.fresh {
		ctx, cancel := context.WithCancel(ctx)
		var c children
		defer c.end(cancel)
		if pair, err = start(ctx, &c); err != nil {
			return v, err
		}
	}
	order := []int{0, 1}
	if swap {
		slices.Reverse(order)
	}
	for _, i := range order {
		if v[i], err = p.measure(ctx, pair[i], d); err != nil {
			return v, err
		}
	}
	return v, nil
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}
