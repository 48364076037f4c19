package scrape

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llmgw/llmgw/modules/internal/fleet"
	"github.com/llmgw/llmgw/modules/schedule"
)

// engine is a fake engine without a socket, so that time can be faked, too.
type engine struct {
	mu    sync.Mutex
	pages map[string]string // path -> body; "503" and the like for a status, "hang", "late", "refuse"
	asked map[string][]time.Time
	keys  []string
}

// newEngine returns one that is well and serves the model "m".
func newEngine() *engine {
	return &engine{
		pages: map[string]string{
			"/metrics": good, "/health": "", "/v1/models": `{"data":[{"id":"m"}]}`,
		},
		asked: make(map[string][]time.Time),
	}
}

func (e *engine) set(path, body string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pages[path] = body
}

// times returns when a path was asked for.
func (e *engine) times(path string) []time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.asked[path])
}

func (e *engine) RoundTrip(r *http.Request) (*http.Response, error) {
	e.mu.Lock()
	body := e.pages[r.URL.Path]
	e.asked[r.URL.Path] = append(e.asked[r.URL.Path], time.Now())
	e.keys = append(e.keys, r.Header.Get("Authorization"))
	e.mu.Unlock()
	status := http.StatusOK
	switch body {
	case "hang":
		<-r.Context().Done()
		return nil, r.Context().Err()
	case "late": // as it looks from a process that gets to run now and then
		<-r.Context().Done()
		time.Sleep(late)
		return nil, r.Context().Err()
	case "refuse":
		return nil, errors.New("connection refused")
	case "404":
		status = http.StatusNotFound
	case "403":
		status = http.StatusForbidden
	case "500":
		status = http.StatusInternalServerError
	case "503":
		status = http.StatusServiceUnavailable
	}
	return &http.Response{
		StatusCode: status, Body: io.NopCloser(strings.NewReader(body)), Request: r,
		Header: make(http.Header), ProtoMajor: 1, ProtoMinor: 1,
	}, nil
}

// journal collects log lines.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

// count returns how many lines hold a text.
func (j *journal) count(text string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Count(j.text.String(), text)
}

// stage is a manager with one engine in a bubble of its own.
type stage struct {
	*testing.T
	manager *Manager
	engine  *engine
	fleet   *fleet.Fleet
	target  Target
	replica *fleet.Replica
	log     *journal
}

// play runs a test in a bubble where time is faked, and ends what it left
// attached.
func play(t *testing.T, test func(s *stage)) {
	synctest.Test(t, func(t *testing.T) {
		s := &stage{T: t, engine: newEngine(), fleet: fleet.New(nil), log: new(journal)}
		logger := slog.New(slog.NewTextHandler(s.log, nil))
		s.manager = New(func() *slog.Logger { return logger }, nil)
		s.target = target(t, s.fleet, "gpu1:8000", NewClient(s.engine))
		s.replica = s.target.Replica
		test(s)
		s.manager.Wait()
		if s.log.count("hunter2") != 0 {
			t.Error("the engine's key is in the log")
		}
	})
}

// attach attaches the stage's target. changes counts its onModels calls.
func (s *stage) attach() (detach func(), changes *int) {
	changes = new(int)
	return s.manager.Attach([]Target{s.target}, func() { *changes++ }), changes
}

// after lets time pass and everything that is due happen.
func (s *stage) after(d time.Duration) {
	time.Sleep(d) // of the bubble's clock: no time passes
	synctest.Wait()
}

func (s *stage) want(state schedule.State) {
	s.Helper()
	if got := s.replica.State(); got != state {
		reason, _ := s.replica.Health.Reason()
		s.Errorf("%s (%s), want %s", got, reason, state)
	}
}
