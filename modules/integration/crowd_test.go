package integration

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// ticking answers streams with a token each tick until finish is closed, and
// then says how many these were. Anything else it answers at once.
func ticking(tick time.Duration, finish <-chan struct{}) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if !strings.Contains(string(body), `"stream":true`) {
			answer(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		n := 0
		for going := true; going; n++ {
			io.WriteString(w, tokenEvent)
			http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
				return
			case <-finish:
				going = false
			case <-time.After(tick):
			}
		}
		fmt.Fprintf(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"sent %d\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n", n)
	}
}

var sentTokens = regexp.MustCompile(`"sent (\d+)"`)

// whole checks a stream that ticking gave.
func whole(text string) error {
	m := sentTokens.FindStringSubmatch(text)
	if m == nil || !strings.HasSuffix(text, "data: [DONE]\n\n") {
		return fmt.Errorf("it ends with %q", text[max(0, len(text)-200):])
	}
	want, err := strconv.Atoi(m[1])
	if got := strings.Count(text, tokenEvent); err != nil || got != want {
		return fmt.Errorf("%d tokens came of %d", got, want)
	}
	return nil
}

// crowd is many streams at once.
type crowd struct {
	wg     sync.WaitGroup
	mu     sync.Mutex
	faults []error
}

// streams opens n streams and returns when the first token of each has come.
func (g *gateway) streams(t *testing.T, n int, body string) *crowd {
	t.Helper()
	client := &http.Transport{}
	c := new(crowd)
	var begun atomic.Int32
	for range n {
		c.wg.Go(func() {
			err := func() error {
				res, err := client.RoundTrip(g.request(t, t.Context(), http.MethodPost, "/v1/chat/completions", body))
				if err != nil {
					return err
				}
				defer res.Body.Close()
				lines := bufio.NewReader(res.Body)
				first, err := lines.ReadString('\n')
				begun.Add(1)
				if err != nil || res.StatusCode != http.StatusOK {
					return fmt.Errorf("%s %q: %w", res.Status, first, err)
				}
				rest, err := io.ReadAll(lines)
				if err != nil {
					return fmt.Errorf("%w after %d tokens", err, strings.Count(string(rest), tokenEvent)+1)
				}
				return whole(first + string(rest))
			}()
			if err != nil {
				c.mu.Lock()
				c.faults = append(c.faults, err)
				c.mu.Unlock()
			}
		})
	}
	eventually(t, "all streams have begun", func() bool { return int(begun.Load())+len(c.broken()) >= n })
	t.Cleanup(client.CloseIdleConnections)
	return c
}

func (c *crowd) broken() []error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]error(nil), c.faults...)
}

// end waits for all streams and reports the broken ones.
func (c *crowd) end(t *testing.T) {
	t.Helper()
	c.wg.Wait()
	faults := c.broken()
	for _, err := range faults[:min(len(faults), 5)] {
		t.Errorf("a broken stream: %v", err)
	}
	if len(faults) > 0 {
		t.Errorf("%d streams broke", len(faults))
	}
}

// isLost reports whether err is of a connection that the other side has closed.
func isLost(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, io.EOF)
}

// errLost is a connection that was closed before a byte of an answer came.
var errLost = errors.New("the connection was closed before an answer")

// once sends a request on a connection of its own, and so meets the server
// that accepts at that moment. A reload of any Caddy closes the old listening
// socket and with it the connections that nobody has accepted, and Go's server
// closes those whose request it has not read: that is errLost.
func (g *gateway) once(ctx context.Context, body string) (res *http.Response, text string, err error) {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", g.listen)
	if errors.Is(err, syscall.ECONNRESET) {
		return nil, "", errLost
	}
	if err != nil {
		return nil, "", err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(deadline))
	in := bufio.NewReader(conn)
	_, err = fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", g.listen, len(body), body)
	if err == nil {
		_, err = in.Peek(1)
	}
	if isLost(err) {
		return nil, "", errLost
	}
	if err != nil {
		return nil, "", err
	}
	res, err = http.ReadResponse(in, nil)
	if err != nil {
		return nil, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res, string(b), err
}

// fresh does so again while the connection is lost.
func (g *gateway) fresh(t *testing.T, body string) (status int, text string) {
	t.Helper()
	for range 100 {
		res, text, err := g.once(t.Context(), body)
		if err == nil {
			return res.StatusCode, text
		}
		if !errors.Is(err, errLost) {
			t.Fatal(err)
		}
	}
	t.Fatal("100 connections in a row were lost")
	return 0, ""
}

// passers send request after request, each on a fresh connection, until they
// are told to stop.
type passers struct {
	t      *testing.T
	stop   chan struct{}
	wg     sync.WaitGroup
	phase  atomic.Value // a word that goes into each body
	sent   atomic.Int64
	mu     sync.Mutex
	lost   map[string]bool
	faults []string
	check  func(id string, res *http.Response) // of each answer, if set
}

// pass starts n of them, for the model m.
func (g *gateway) pass(t *testing.T, n int, check func(id string, res *http.Response)) *passers {
	t.Helper()
	p := &passers{t: t, stop: make(chan struct{}), lost: make(map[string]bool), check: check}
	p.phase.Store("before")
	var number atomic.Int64
	for range n {
		p.wg.Go(func() {
			for {
				select {
				case <-p.stop:
					return
				default:
				}
				id := fmt.Sprintf("%s-%d", p.phase.Load(), number.Add(1))
				res, text, err := g.once(t.Context(), fmt.Sprintf(`{"model":"m","messages":[],"x":%q}`, id))
				p.mu.Lock()
				switch {
				case errors.Is(err, errLost):
					p.lost[id] = true
				case err != nil:
					p.faults = append(p.faults, fmt.Sprintf("%s: %v", id, err))
				case res.StatusCode != http.StatusOK:
					p.faults = append(p.faults, fmt.Sprintf("%s: %s %s", id, res.Status, text))
				case p.check != nil:
					p.check(id, res)
				}
				p.mu.Unlock()
				p.sent.Add(1)
			}
		})
	}
	p.more(n)
	return p
}

// more waits until n more requests are through.
func (p *passers) more(n int) {
	p.t.Helper()
	want := p.sent.Load() + int64(n)
	eventually(p.t, "more requests are through", func() bool { return p.sent.Load() >= want })
}

// end stops the passers and reports what failed. A lost connection is no
// failure if its request reached no engine.
func (p *passers) end(engines ...*engine) {
	p.t.Helper()
	close(p.stop)
	p.wg.Wait()
	for _, f := range p.faults[:min(len(p.faults), 5)] {
		p.t.Errorf("a request failed: %s", f)
	}
	if len(p.faults) > 0 {
		p.t.Errorf("%d of %d requests failed", len(p.faults), p.sent.Load())
	}
	for _, e := range engines {
		for _, r := range e.got() {
			if m := passerID.FindStringSubmatch(r.Body); m != nil && p.lost[m[1]] {
				p.t.Errorf("request %s reached an engine, and its client got no answer", m[1])
			}
		}
	}
	p.t.Logf("%d requests, of these %d on lost connections", p.sent.Load(), len(p.lost))
}

var passerID = regexp.MustCompile(`"x":"([^"]*)"`)

// openFiles is the number of this process's open files, sockets included.
func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skipf("open files cannot be counted here: %v", err)
	}
	return len(list)
}

// goroutinesNow is the most that are seen for a while: a scrape has some.
func goroutinesNow() int {
	most := 0
	for range 50 {
		most = max(most, runtime.NumGoroutine())
		<-time.After(5 * time.Millisecond)
	}
	return most
}

// settledFiles waits until at most want files are open.
func settledFiles(t *testing.T, want int) {
	t.Helper()
	eventually(t, fmt.Sprintf("at most %d files are open", want), func() bool { return openFiles(t) <= want })
}
