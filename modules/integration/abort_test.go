package integration

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// The stages at which a client leaves.
const (
	inHead = iota
	inBody
	inLargeBody
	atOnce
	beforeHeaders
	inStream
	atTheEnd
	stages
)

// leaver is one client that leaves.
type leaver struct {
	stage int
	cut   float64       // how much of it is sent, 0 to 1
	pause time.Duration // before it leaves
	reset bool          // with a reset
}

// leave sends a part of a request, or reads a part of its answer, and is gone.
func (l leaver) leave(g *gateway) error {
	conn, err := net.Dial("tcp", g.listen)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(deadline))
	if l.reset {
		conn.(*net.TCPConn).SetLinger(0)
	}
	kind := map[int]string{beforeHeaders: "hold", atTheEnd: "short"}[l.stage]
	body := `{"model":"m","stream":true,"messages":[],"x":"` + kind + `"}`
	if l.stage == inLargeBody {
		body = `{"model":"m","x":"` + strings.Repeat("x", 300<<10) + `"}`
	}
	head := fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", g.listen, len(body))
	text := head + body
	switch l.stage {
	case inHead:
		text = head[:int(l.cut*float64(len(head)-1))]
	case inBody, inLargeBody:
		text = text[:len(head)+int(l.cut*float64(len(body)-1))]
	}
	if _, err := io.WriteString(conn, text); err != nil {
		return err
	}
	var until []byte
	switch l.stage {
	case inStream:
		until = []byte("data: ")
	case atTheEnd:
		until = []byte("[DONE]")
	default:
		<-time.After(l.pause)
		return nil
	}
	lines := bufio.NewReader(conn)
	for i := 0; ; i++ {
		line, err := lines.ReadBytes('\n')
		if err != nil || i == 0 && !bytes.Contains(line, []byte(" 200 ")) {
			return fmt.Errorf("the answer is %q: %w", line, err)
		}
		if bytes.Contains(line, until) {
			return nil
		}
	}
}

// TestAbortedRequestsLeaveNothing: thousands of clients leave at every stage.
// On a slow machine they are fewer, unless LLMGW_SLOW=1.
func TestAbortedRequestsLeaveNothing(t *testing.T) {
	const clients, least, atATime = 10000, 2000, 200
	enough := 30 * time.Second
	if os.Getenv("LLMGW_SLOW") == "1" {
		enough = time.Hour
	}
	var waits atomic.Int64 // requests that an engine has now
	forever := ticking(20*time.Millisecond, nil)
	serve := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/chat/completions" {
			http.NotFound(w, r)
			return
		}
		waits.Add(1)
		defer waits.Add(-1)
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		switch {
		case bytes.Contains(body, []byte(`"hold"`)):
			<-r.Context().Done()
		case bytes.Contains(body, []byte(`"short"`)):
			events("text/event-stream", tokenEvent, "data: [DONE]\n\n")(w, r)
		default:
			forever(w, r)
		}
	}
	a, b := newEngine(t, answer), newEngine(t, answer)
	a.setInstead(serve) // which keeps no record, to leave the memory alone
	b.setInstead(serve)
	// A machine that is busy with all this may be slow to connect.
	g := start(t, one(a, b)+"\n\t\treliability {\n\t\t\tconnect_timeout 1m\n\t\t}", "\tllm")

	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	crowd := func(n int, seed uint64) {
		t.Helper()
		begin, sent := time.Now(), 0
		random := rand.New(rand.NewPCG(seed, 0))
		work := make(chan leaver)
		var wg sync.WaitGroup
		var faults atomic.Int64
		for range atATime {
			wg.Go(func() {
				for l := range work {
					if err := l.leave(g); err != nil && faults.Add(1) <= 5 {
						t.Errorf("stage %d: %v", l.stage, err)
					}
				}
			})
		}
		for ; sent < n && (sent < least || time.Since(begin) < enough); sent++ {
			work <- leaver{sent % stages, random.Float64(), time.Duration(random.IntN(10)) * time.Millisecond, random.IntN(4) == 0}
		}
		close(work)
		wg.Wait()
		t.Logf("%d clients in %v", sent, time.Since(begin))
		eventually(t, "nothing is in flight", func() bool {
			for _, r := range g.replicas(t) {
				if r.Inflight != 0 || r.PendingTokens != 0 {
					return false
				}
			}
			held, ok := g.metric(t, "llmgw_body_bytes")
			return ok && held == 0 && waits.Load() == 0
		})
		// Connections to engines are kept for 4 s.
		http.DefaultClient.CloseIdleConnections()
	}
	// What is there from the first request on does not count.
	crowd(2*atATime, 1)
	eventually(t, "the connections to the engines are closed", func() bool { return openFiles(t) < atATime })
	goroutines, files, heap := goroutinesNow(), openFiles(t), liveHeap()
	crowd(clients, seed)
	if after := settled(t, goroutines+5); after > goroutines+5 {
		t.Errorf("%d goroutines before, %d after", goroutines, after)
	}
	settledFiles(t, files+5)
	if after := liveHeap(); after > heap+4<<20 {
		t.Errorf("%d KiB live before, %d KiB after", heap>>10, after>>10)
	}
	// It is no less fit than before.
	if res, text := g.post(t, "/v1/chat/completions", `{"model":"m","stream":true,"messages":[],"x":"short"}`); res.StatusCode != http.StatusOK {
		t.Errorf("%s %s", res.Status, text)
	}
	if v, _ := g.metric(t, `llmgw_outcomes_total{model="m",outcome="broken"}`); v != 0 {
		t.Errorf("%v requests count as broken by the engine", v)
	}
	for id, r := range g.replicas(t) {
		if r.State != "ready" {
			t.Errorf("%s is %s for what its clients did: %s", id, r.State, r.Reason)
		}
	}
}

// liveHeap is the memory that is in use after a collection.
func liveHeap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // pools are emptied in two steps
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
