// Command bench measures what the gateway costs beside Caddy's plain
// reverse_proxy with least_conn, in the same binary and the same run: CPU time
// per request and per streamed token. Milliseconds differ from machine to
// machine, ratios hardly do.
//
//	go run ./bench [-binary bin/llmgw] [-runs 5] [-seconds 4] [-check]
//
// Four fake replicas in a process of their own stand behind each proxy; all
// traffic is on loopback.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
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
	runs := flag.Int("runs", 5, "measurements of each, in turn")
	seconds := flag.Int("seconds", 4, "length of one measurement")
	check := flag.Bool("check", false, "fail if a ratio is above what is promised")
	upstream := flag.Bool("upstream", false, "be the fake replicas (used by the benchmark itself)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if *upstream {
		err = serveReplicas(ctx)
	} else {
		err = bench(ctx, *binary, *runs, time.Duration(*seconds)*time.Second, *check)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1) //nolint:gocritic // the deferred stop only gives signals back
	}
}

// promise is a measured figure and what is promised of it.
type promise struct {
	name  string
	unit  string
	ratio float64
	do    func(ctx context.Context, url string, d time.Duration) (units int, err error)
}

var promises = []promise{
	{"CPU per request", "request", 1.0, closedLoop},
	{"CPU per streamed token", "token", 1.1, streams},
}

func bench(ctx context.Context, binary string, runs int, d time.Duration, check bool) error {
	ctx, cancel := context.WithCancel(ctx)
	var children children
	defer children.end(cancel)
	addresses, err := startReplicas(ctx, &children)
	if err != nil {
		return err
	}
	plain, err := startProxy(ctx, &children, binary, "reverse_proxy "+strings.Join(addresses, " ")+" {\n\t\tlb_policy least_conn\n\t}", "")
	if err != nil {
		return err
	}
	ours, err := startProxy(ctx, &children, binary, "llm", "llmgw {\n\t\tmodel m {\n\t\t\tendpoint "+strings.Join(addresses, " ")+"\n\t\t}\n\t}")
	if err != nil {
		return err
	}
	var missed []error
	for _, p := range promises {
		var plainCost, ourCost, ratios []float64
		for run := range runs + 1 {
			a, err := plain.cost(ctx, p, d)
			if err != nil {
				return err
			}
			b, err := ours.cost(ctx, p, d)
			if err != nil {
				return err
			}
			if run == 0 {
				continue // warm-up
			}
			plainCost, ourCost, ratios = append(plainCost, a), append(ourCost, b), append(ratios, b/a)
		}
		r := median(ratios)
		fmt.Printf("%-24s plain Caddy %7.1f µs, llmgw %7.1f µs a %s, ratio %.2f (%.2f to %.2f, promised at most %.2f)\n",
			p.name, median(plainCost), median(ourCost), p.unit, r, slices.Min(ratios), slices.Max(ratios), p.ratio)
		if r > p.ratio {
			missed = append(missed, fmt.Errorf("%s: ratio %.2f is above %.2f", p.name, r, p.ratio))
		}
	}
	if check {
		return errors.Join(missed...)
	}
	return nil
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// children are the processes and folders of a run.
type children struct {
	processes []*exec.Cmd
	folders   []string
}

// end kills the processes, waits for them, and removes the folders.
func (c *children) end(cancel context.CancelFunc) {
	cancel()
	for _, p := range c.processes {
		_ = p.Wait() // it was killed
	}
	for _, f := range c.folders {
		_ = os.RemoveAll(f)
	}
}

// proxy is a running proxy.
type proxy struct {
	url string
	pid int
}

// startProxy runs the binary with a site of its own until ctx ends.
func startProxy(ctx context.Context, c *children, binary, site, option string) (*proxy, error) {
	address, err := freeAddress(ctx)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "llmgw-bench-")
	if err != nil {
		return nil, err
	}
	c.folders = append(c.folders, dir)
	config := fmt.Sprintf("{\n\tadmin off\n\tpersist_config off\n\tauto_https off\n\tlog {\n\t\tlevel ERROR\n\t}\n\t%s\n}\nhttp://%s {\n\t%s\n}\n", option, address, site)
	file := filepath.Join(dir, "Caddyfile")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, binary, "run", "--config", file)
	cmd.Env = append(os.Environ(), "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w (make build builds it)", binary, err)
	}
	c.processes = append(c.processes, cmd)
	p := &proxy{url: "http://" + address, pid: cmd.Process.Pid}
	return p, waitFor(ctx, p.url)
}

// waitFor waits until a completion is answered.
func waitFor(ctx context.Context, url string) error {
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end) && ctx.Err() == nil; {
		res, err := post(ctx, http.DefaultClient, url, plainBody)
		if err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return nil
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("%s does not answer", url)
}

// cost returns the CPU time in microseconds that the proxy spends on a unit of
// work.
func (p *proxy) cost(ctx context.Context, what promise, d time.Duration) (float64, error) {
	before, err := cpuTime(p.pid)
	if err != nil {
		return 0, err
	}
	units, err := what.do(ctx, p.url, d)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", what.name, err)
	}
	after, err := cpuTime(p.pid)
	if err != nil {
		return 0, err
	}
	return float64((after-before)/time.Microsecond) / float64(units), nil
}

// clockTick is the unit of /proc/PID/stat: USER_HZ is 100 on every Linux.
const clockTick = 10 * time.Millisecond

// cpuTime returns the user and system time of a process.
func cpuTime(pid int) (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// Fields 14 and 15; the second, in parentheses, may hold blanks.
	_, rest, ok := strings.Cut(string(b), ") ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 13 {
		return 0, errors.New("/proc/PID/stat has another format")
	}
	var user, system int64
	if _, err := fmt.Sscan(fields[11]+" "+fields[12], &user, &system); err != nil {
		return 0, err
	}
	return time.Duration(user+system) * clockTick, nil
}

func freeAddress(ctx context.Context) (string, error) {
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer ln.Close()
	return ln.Addr().String(), nil
}
