package sim

import (
	"net/http"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// journalBody is how many bytes of a body the journal keeps.
const journalBody = 64 << 10

// Received is one request that arrived, as /sim/requests shows it.
type Received struct {
	Time    time.Time   `json:"time"`
	Method  string      `json:"method"`
	Path    string      `json:"path"`
	Query   string      `json:"query"`
	Headers http.Header `json:"headers"`
	// Body is the body, or its beginning where Truncated is set; bytes that are
	// no UTF-8 become U+FFFD. BodyBytes is the length of the whole.
	Body      string `json:"body"`
	BodyBytes int    `json:"body_bytes"`
	Truncated bool   `json:"truncated"`
}

// journal keeps the latest requests, other than those of probes, which would
// push the others out.
type journal struct {
	keep int

	mu    sync.Mutex
	list  []Received // a ring once it is full
	total int        // all that were ever added
}

func (j *journal) add(r *http.Request, body []byte) {
	switch r.URL.Path {
	case "/health", "/ping", "/metrics", "/metrics/", "/version", "/load":
		return
	}
	rec := Received{
		Time: time.Now(), Method: r.Method, Path: r.URL.Path, Query: r.URL.RawQuery,
		Headers: r.Header.Clone(), BodyBytes: len(body),
	}
	rec.Headers.Set("Host", r.Host)
	kept := body[:min(len(body), journalBody)]
	rec.Truncated = len(kept) < len(body)
	if rec.Body = string(kept); !utf8.ValidString(rec.Body) {
		rec.Body = strings.ToValidUTF8(rec.Body, "\uFFFD")
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.list) < j.keep {
		j.list = append(j.list, rec)
	} else {
		j.list[j.total%j.keep] = rec
	}
	j.total++
}

// requestList is the answer of /sim/requests, oldest first.
type requestList struct {
	Total    int        `json:"total"`
	Requests []Received `json:"requests"`
}

func (j *journal) state() requestList {
	j.mu.Lock()
	defer j.mu.Unlock()
	out := requestList{Total: j.total, Requests: make([]Received, 0, len(j.list))}
	first := 0
	if len(j.list) == j.keep {
		first = j.total % j.keep
	}
	out.Requests = append(append(out.Requests, j.list[first:]...), j.list[:first]...)
	return out
}

func (j *journal) clear() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.list, j.total = nil, 0
}

// requests serves GET /sim/requests.
func (x *call) requests() { x.json(http.StatusOK, x.e.journal.state()) }

// reset serves POST /sim/reset: cached blocks, counters and the journal are
// forgotten, requests in flight go on.
func (x *call) reset() {
	x.core.reset()
	x.e.journal.clear()
	x.json(http.StatusOK, map[string]bool{"success": true})
}
