package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// footprint is what the gateway's process holds.
type footprint struct {
	files, goroutines int
}

func (s *soak) footprint(ctx context.Context) (f footprint, err error) {
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.gateway.cmd.Process.Pid))
	if err != nil {
		return f, err
	}
	f.files = len(open)
	_, page, err := s.gateway.admin(ctx, "/debug/pprof/goroutine?debug=1", "", "")
	if err != nil {
		return f, err
	}
	if _, err := fmt.Sscanf(string(page), "goroutine profile: total %d", &f.goroutines); err != nil {
		return f, fmt.Errorf("%w in %.100q", err, page)
	}
	return f, nil
}

// sample notes the gateway's memory, after a collection of garbage, twenty times
// in a run and every ten seconds at least.
func (s *soak) sample(ctx, over context.Context) error {
	tick := time.NewTicker(min(10*time.Second, s.length/20))
	defer tick.Stop()
	for {
		select {
		case <-over.Done():
			return nil
		case <-tick.C:
		}
		if _, _, err := s.gateway.admin(ctx, "/debug/pprof/heap?gc=1", "", ""); err != nil {
			return err
		}
		resident, err := residentBytes(s.gateway.cmd.Process.Pid)
		if err != nil {
			return err
		}
		series, err := s.metrics(ctx)
		if err != nil {
			return err
		}
		s.report.memory(resident, series["go_memstats_heap_inuse_bytes"])
	}
}

func (r *report) memory(resident, heap float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rss, r.heap = append(r.rss, resident/(1<<20)), append(r.heap, heap/(1<<20))
}

// residentBytes reads the resident set of a process.
func residentBytes(pid int) (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 64)
			return kib * 1024, err
		}
	}
	return 0, errors.New("/proc/PID/status has no VmRSS")
}

// metrics returns the series of the gateway's metrics page, by name and labels.
func (s *soak) metrics(ctx context.Context) (map[string]float64, error) {
	_, page, err := s.gateway.admin(ctx, "/metrics", "", "")
	if err != nil {
		return nil, err
	}
	all := make(map[string]float64)
	for lines := bufio.NewScanner(bytes.NewReader(page)); lines.Scan(); {
		at := strings.LastIndexByte(lines.Text(), ' ')
		if at < 0 || strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		if all[lines.Text()[:at]], err = strconv.ParseFloat(lines.Text()[at+1:], 64); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// counted is the number of requests in llmgw_requests_total.
func counted(series map[string]float64) int {
	sum := 0.0
	for name, v := range series {
		if strings.HasPrefix(name, "llmgw_requests_total{") {
			sum += v
		}
	}
	return int(sum)
}

// replica is what the admin API says of one.
type replica struct {
	Replica       string
	State         string
	Reason        string
	Inflight      int
	PendingTokens int64 `json:"pending_tokens"`
	Waiting       *float64
	Running       *float64
	Metrics       string
}

func (s *soak) replicas(ctx context.Context) ([]replica, error) {
	_, text, err := s.gateway.admin(ctx, "/llmgw/replicas", "", "")
	if err != nil {
		return nil, err
	}
	var list []replica
	return list, json.Unmarshal(text, &list)
}

// unsettled says what is not at rest: a replica that is not ready or has work,
// requests that wait, or bodies that are held.
func (s *soak) unsettled(ctx context.Context) []string {
	list, err := s.replicas(ctx)
	series, err2 := s.metrics(ctx)
	_, queue, err3 := s.gateway.admin(ctx, "/llmgw/queue", "", "")
	if err := errors.Join(err, err2, err3); err != nil {
		return []string{err.Error()}
	}
	var faults []string
	if q := strings.TrimSpace(string(queue)); q != "[]" {
		faults = append(faults, "requests wait: "+q)
	}
	if len(list) != engines {
		faults = append(faults, fmt.Sprintf("%d replicas are listed, want %d", len(list), engines))
	}
	for _, r := range list {
		idle := func(v *float64) bool { return v != nil && *v == 0 }
		if r.State != "ready" || r.Metrics != "ok" || r.Inflight != 0 || r.PendingTokens != 0 || !idle(r.Waiting) || !idle(r.Running) {
			text, _ := json.Marshal(r)
			faults = append(faults, "a replica is not at rest: "+string(text))
		}
	}
	if v, ok := series["llmgw_body_bytes"]; !ok || v != 0 {
		faults = append(faults, fmt.Sprintf("llmgw_body_bytes is %g", v))
	}
	return faults
}

// settle waits until the gateway is at rest.
func (s *soak) settle(ctx context.Context) error {
	var faults []string
	err := poll(ctx, "the gateway is at rest", func() bool {
		faults = s.unsettled(ctx)
		return len(faults) == 0
	})
	if err != nil {
		return fmt.Errorf("%w: %s", err, strings.Join(faults, "; "))
	}
	return nil
}

// batch sends requests that all must succeed and returns which replicas served
// how many.
func (s *soak) batch(ctx context.Context, n int) (map[string]int, error) {
	r := rand.New(rand.NewPCG(s.seed, uint64(n)))
	var mu sync.Mutex
	served := make(map[string]int)
	var faults []error
	free := make(chan struct{}, 12)
	var wg sync.WaitGroup
	for i := range n {
		q := &request{name: "afterwards", id: fmt.Sprintf("soak-batch-%d-%d", n, i), method: "POST", header: map[string][]string{"Content-Type": {"application/json"}}}
		q.generation(r, pathChat, i%2 == 0)
		q.header.Del("X-Session-Id") // a session would keep to its replica
		text := promptTexts()[i%9+1]
		q.expect.text = fmt.Sprintf("batch %d", i%9+1)
		q.body = encode(map[string]any{
			"model": "chat", "max_tokens": q.expect.tokens, "ignore_eos": true, "stream": q.expect.stream,
			"messages": []map[string]string{{"role": "user", "content": text}},
		})
		q.expect.usage, q.expect.either = false, nil
		free <- struct{}{}
		wg.Go(func() {
			defer func() { <-free }()
			end := &ending{request: q, began: time.Now()}
			var where string
			end.verdict, end.id, where = s.once(ctx, q)
			end.ended = time.Now()
			s.report.ended(end)
			mu.Lock()
			defer mu.Unlock()
			served[where]++
			if end.outcome != outcomeOK {
				faults = append(faults, fmt.Errorf("%s of the batch of %d: %s %s%s", q.id, n, end.outcome, end.reason, end.wrong))
			}
		})
	}
	wg.Wait()
	return served, errors.Join(faults...)
}

// once sends a request and waits for its end.
func (s *soak) once(ctx context.Context, q *request) (v verdict, id, replica string) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(hung, func() { cancel(errHung) })
	defer timer.Stop()
	return s.send(ctx, cancel, q)
}

// atRest checks what must hold after the load: it returns what does not.
func (s *soak) atRest(ctx context.Context) (broken []error, err error) {
	if err := s.settle(ctx); err != nil {
		if ctx.Err() != nil {
			return nil, err
		}
		broken = append(broken, err)
	}
	const n = 200
	served, err := s.batch(ctx, n)
	if err != nil {
		broken = append(broken, err)
	}
	for _, e := range s.engines {
		if served[e.address] == 0 {
			broken = append(broken, fmt.Errorf("%s served none of the last %d requests: %v", e.address, n, served))
		}
	}
	if err := s.settle(ctx); err != nil {
		broken = append(broken, err)
	}
	// Idle connections go after some seconds.
	var now footprint
	const room = 10
	err = poll(ctx, "files and goroutines are near where they began", func() bool {
		if now, err = s.footprint(ctx); err != nil {
			return false
		}
		return now.files <= s.base.files+room && now.goroutines <= s.base.goroutines+room
	})
	if err != nil {
		broken = append(broken, fmt.Errorf("%w: %+v, at the start %+v", err, now, s.base))
	}
	fmt.Printf("files %d, goroutines %d; at the start %d and %d\n", now.files, now.goroutines, s.base.files, s.base.goroutines)
	if err := s.counts(ctx); err != nil {
		broken = append(broken, err)
	}
	if err := s.report.flat(); err != nil {
		broken = append(broken, err)
	}
	text, err := os.ReadFile(s.gateway.logs)
	if err != nil {
		return nil, err
	}
	for _, bad := range []string{"panic", "DATA RACE", "runtime error"} {
		if at := bytes.Index(text, []byte(bad)); at >= 0 {
			broken = append(broken, fmt.Errorf("the gateway's log says: %.600s", text[max(0, at-100):]))
		}
	}
	return broken, nil
}

// counts compares the gateway's counter with its access log and with the
// requests that were sent. All of those count that got an answer, and of the
// others, whose clients left early or met a closed connection, those that are
// in the log.
func (s *soak) counts(ctx context.Context) error {
	var got, want, lines, maybe int
	err := poll(ctx, "llmgw_requests_total is right", func() bool {
		series, err := s.metrics(ctx)
		if err != nil {
			return false
		}
		got = counted(series)
		want, lines, maybe = s.report.totals()
		if got != want {
			return false
		}
		return lines == want
	})
	fmt.Printf("llmgw_requests_total is %d: %d answers and %d requests that left before one\n", got, want-maybe, maybe)
	if err != nil {
		return fmt.Errorf("%w: it is %d, want %d, and the access log has %d", err, got, want, lines)
	}
	return nil
}
