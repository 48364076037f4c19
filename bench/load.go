package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	plainBody  = `{"model":"m","max_tokens":16,"messages":[{"role":"user","content":"What is the capital of France?"}]}`
	streamBody = `{"model":"m","stream":true,"stream_options":{"include_usage":true},"max_tokens":100,"messages":[{"role":"user","content":"What is the capital of France?"}]}`
	slowBody   = `{"model":"m","seed":7,"stream":true,"stream_options":{"include_usage":true},"max_tokens":100,"messages":[{"role":"user","content":"What is the capital of France?"}]}`

	connections = 64                    // of the closed loop
	rate        = 200                   // requests a second of the open loop
	concurrent  = 500                   // streams whose tokens are counted
	crowd       = 1000                  // streams whose memory is
	tokens      = 100                   // a stream
	tokenPause  = 40 * time.Millisecond // a busier machine would pass on several tokens at once
	longPause   = 60 * time.Millisecond // of streams that are to be there all at once
	ramp        = time.Second           // streams begin within
)

func post(ctx context.Context, c *http.Client, url, body string, headers ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	return c.Do(req)
}

func client(n int) *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: n, MaxConnsPerHost: n, DisableCompression: true}}
}

// closedLoop sends one request after the other on each connection and returns
// how many were answered.
func closedLoop(ctx context.Context, url string, d time.Duration) (int, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := client(connections)
	defer c.CloseIdleConnections()
	var done atomic.Int64
	var failed atomic.Pointer[error]
	end := time.Now().Add(d)
	var wg sync.WaitGroup
	for range connections {
		wg.Go(func() {
			for time.Now().Before(end) && ctx.Err() == nil {
				if err := once(ctx, c, url); err != nil {
					failed.CompareAndSwap(nil, &err)
					cancel()
					return
				}
				done.Add(1)
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return 0, *err
	}
	return int(done.Load()), ctx.Err()
}

func once(ctx context.Context, c *http.Client, url string, headers ...string) error {
	res, err := post(ctx, c, url, plainBody, headers...)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("answered %s", res.Status)
	}
	return nil
}

// streams opens n streams, all within the ramp, and returns how many tokens
// came.
func streams(ctx context.Context, url, body string, n int) (int, error) {
	c := client(n)
	defer c.CloseIdleConnections()
	var came atomic.Int64
	errs := make(chan error, n)
	for range n {
		go func() {
			n, err := stream(ctx, c, url, body)
			came.Add(int64(n))
			errs <- err
		}()
		time.Sleep(ramp / time.Duration(n))
	}
	var failed []error
	for range n {
		if err := <-errs; err != nil {
			failed = append(failed, err)
		}
	}
	if len(failed) > 0 {
		return 0, fmt.Errorf("%d of %d streams failed, the first: %w", len(failed), n, failed[0])
	}
	return int(came.Load()), nil
}

// openLoop sends requests at a fixed rate, whatever becomes of them, and
// returns the median of the time that each took.
func openLoop(ctx context.Context, url string, d time.Duration) (time.Duration, error) {
	c := client(connections)
	defer c.CloseIdleConnections()
	n := int(d.Seconds() * rate)
	took, errs := make([]time.Duration, n), make(chan error, n)
	tick := time.NewTicker(time.Second / rate)
	defer tick.Stop()
	for i := range n {
		<-tick.C
		go func() {
			start := time.Now()
			err := once(ctx, c, url)
			took[i] = time.Since(start)
			errs <- err
		}()
	}
	for range n {
		if err := <-errs; err != nil {
			return 0, err
		}
	}
	slices.Sort(took)
	return took[n/2], nil
}

func stream(ctx context.Context, c *http.Client, url, body string) (n int, err error) {
	res, err := post(ctx, c, url, body)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		if bytes.Contains(lines.Bytes(), []byte(`"content":`)) {
			n++
		}
	}
	if n != tokens {
		return n, fmt.Errorf("%d of %d tokens came: %w", n, tokens, lines.Err())
	}
	return n, nil
}

// startReplicas runs the fake replicas as a process of their own and returns
// their addresses: first those that answer at once, then those with few slots.
func startReplicas(ctx context.Context, c *children) ([]string, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, exe, "-upstream")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c.processes = append(c.processes, cmd)
	line, err := bufio.NewReader(out).ReadString('\n')
	return strings.Fields(line), err
}

// serveReplicas is that process.
func serveReplicas(ctx context.Context) error {
	var addresses []string
	ended := make(chan error, 2*replicas)
	for i := range 2 * replicas {
		var handler http.Handler = http.HandlerFunc(replica)
		if i >= replicas {
			handler = &slotted{running: make(chan struct{}, slots)}
		}
		ln, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		addresses = append(addresses, ln.Addr().String())
		go func() {
			s := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
			ended <- s.Serve(ln)
		}()
	}
	fmt.Println(strings.Join(addresses, " "))
	select {
	case <-ctx.Done():
		return nil
	case err := <-ended:
		return err
	}
}

var (
	plainAnswer = []byte(`{"id":"chatcmpl-1","object":"chat.completion","created":1790000000,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"The capital of France is Paris."},"finish_reason":"stop"}],"usage":{"prompt_tokens":14,"completion_tokens":7,"total_tokens":21}}`)
	chunk       = []byte(`data: {"id":"chatcmpl-9fd2d8d9010fbc52","object":"chat.completion.chunk","created":1795952523,"model":"m","choices":[{"index":0,"delta":{"content":" day"},"logprobs":null,"finish_reason":null,"token_ids":null}]}` + "\n\n")
	lastChunks  = []byte(`data: {"id":"chatcmpl-9fd2d8d9010fbc52","object":"chat.completion.chunk","created":1795952523,"model":"m","choices":[],"usage":{"prompt_tokens":14,"completion_tokens":100,"total_tokens":114}}` + "\n\ndata: [DONE]\n\n")
)

// replica answers at once, or with a stream.
func replica(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil || r.Method != http.MethodPost {
		http.NotFound(w, r)
		return
	}
	if !bytes.Contains(body, []byte(`"stream":true`)) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(plainAnswer)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	pause := tokenPause
	if bytes.Contains(body, []byte(`"seed":7`)) {
		pause = longPause
	}
	tick := time.NewTicker(pause)
	defer tick.Stop()
	flusher := http.NewResponseController(w)
	for range tokens {
		if _, err := w.Write(chunk); err != nil || flusher.Flush() != nil {
			return
		}
		<-tick.C
	}
	_, _ = w.Write(lastChunks)
}
