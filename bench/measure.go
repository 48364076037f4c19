package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"
)

// cpuPerRequest is in microseconds, at saturation.
func cpuPerRequest(ctx context.Context, p *proxy, d time.Duration) (float64, error) {
	return p.cost(func() (int, error) { return closedLoop(ctx, p.url, d) })
}

// cpuPerToken is in microseconds, while 500 streams run at once.
func cpuPerToken(ctx context.Context, p *proxy, _ time.Duration) (float64, error) {
	return p.cost(func() (int, error) { return streams(ctx, p.url, streamBody, concurrent) })
}

// cost returns the CPU time in microseconds that the proxy spends on a unit of
// work.
func (p *proxy) cost(work func() (units int, err error)) (float64, error) {
	before, err := cpuTime(p.pid)
	if err != nil {
		return 0, err
	}
	units, err := work()
	if err != nil {
		return 0, err
	}
	after, err := cpuTime(p.pid)
	if err != nil {
		return 0, err
	}
	return float64((after-before)/time.Microsecond) / float64(units), nil
}

// latency is the median time of a request in microseconds, with little to do.
func latency(ctx context.Context, p *proxy, d time.Duration) (float64, error) {
	median, err := openLoop(ctx, p.url, d)
	return float64(median) / float64(time.Microsecond), err
}

// memoryPerStream is in KiB: the most that 1,000 streams at once took, over what
// the process had before.
func memoryPerStream(ctx context.Context, p *proxy, _ time.Duration) (float64, error) {
	before, err := memory(p.pid, "VmRSS:")
	if err != nil {
		return 0, err
	}
	if _, err := streams(ctx, p.url, slowBody, crowd); err != nil {
		return 0, err
	}
	most, err := memory(p.pid, "VmHWM:")
	return (most - before) / crowd, err
}

// memory returns a line of /proc/PID/status, in KiB.
func memory(pid int, name string) (kib float64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, rest, ok := strings.Cut(string(b), "\n"+name)
	if !ok {
		return 0, errors.New("/proc/PID/status has no " + name)
	}
	_, err = fmt.Sscan(rest, &kib)
	return kib, err
}

// overhead returns the upper bound of the bucket of llmgw_overhead_seconds that
// the 99th percentile of all requests so far falls into.
func (p *proxy) overhead(ctx context.Context) (time.Duration, error) {
	const name = "llmgw_overhead_seconds"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.admin+"/metrics", http.NoBody)
	if err != nil {
		return 0, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	var bounds, counts []float64
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		var bound, count float64
		if n, _ := fmt.Sscanf(lines.Text(), name+`_bucket{le="%g"} %g`, &bound, &count); n == 2 {
			bounds, counts = append(bounds, bound), append(counts, count)
		}
	}
	if len(counts) == 0 {
		return 0, errors.New("the metrics page has no " + name)
	}
	total := counts[len(counts)-1]
	for i, c := range counts {
		if c >= 0.99*total {
			return time.Duration(bounds[i] * float64(time.Second)), nil
		}
	}
	return 0, errors.New(name + " does not add up")
}
