package sim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Modes of a fault.
const (
	// ModeNone is health.
	ModeNone = "none"
	// ModeError answers with Status at once, in vLLM's shape.
	ModeError = "error"
	// ModeHang takes requests and never answers.
	ModeHang = "hang"
	// ModeSlow multiplies all times by Factor.
	ModeSlow = "slow"
	// ModeBreak resets the connection after AfterTokens tokens, in the middle
	// of a whole answer, or before the headers where AfterTokens is -1.
	ModeBreak = "break"
	// ModeCrash ends everything at once: the port, all connections, the cache.
	ModeCrash = "crash"
	// ModeFreezeMetrics keeps the metrics page as it was when the fault was set.
	ModeFreezeMetrics = "freeze_metrics"
	// ModeNoMetrics answers the metrics page with 404.
	ModeNoMetrics = "no_metrics"
	// ModeInbandError sends vLLM's error frame and [DONE] after AfterTokens
	// tokens of a stream; a whole answer gets 500.
	ModeInbandError = "inband_error"
	// ModeRedirectMetrics answers /metrics with 307 to /metrics/.
	ModeRedirectMetrics = "redirect_metrics"
)

// Fault is what goes wrong, as /sim/faults takes and shows it. Fields that a
// request leaves out have the value of [DefaultFault]. One fault is on at a time.
type Fault struct {
	// Mode is one of the Mode constants.
	Mode string `json:"mode"`
	// Status is the answer of ModeError, 400 to 599.
	Status int `json:"status"`
	// Factor is how much longer all takes under ModeSlow, above 0.
	Factor float64 `json:"factor"`
	// AfterTokens is how many tokens of a response ModeBreak and
	// ModeInbandError let through; -1 breaks before the headers.
	AfterTokens int `json:"after_tokens"`
	// Share is the part of the requests that is hit, above 0 to 1, spread evenly
	// over them.
	Share float64 `json:"share"`
	// Count ends the fault after that many hits; 0 never does.
	Count int `json:"count"`
	// Path limits error, hang, break and inband_error to the paths that begin
	// with it, with any method. Empty: all that is posted.
	Path string `json:"path"`
	// RestartAfter brings a crashed engine back after that Go duration, with an
	// empty cache and counters at zero. Empty: Run returns [ErrCrashed].
	RestartAfter string `json:"restart_after"`
}

// DefaultFault has the values of fields that a request leaves out.
func DefaultFault() Fault {
	return Fault{Mode: ModeNone, Status: http.StatusServiceUnavailable, Factor: 10, AfterTokens: 5, Share: 1}
}

// Validate returns all faults of the fault, or nil.
func (f Fault) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	switch f.Mode {
	case ModeNone, ModeError, ModeHang, ModeSlow, ModeBreak, ModeCrash, ModeFreezeMetrics, ModeNoMetrics, ModeInbandError, ModeRedirectMetrics:
	default:
		check(false, "mode is %q: want none, error, hang, slow, break, crash, freeze_metrics, no_metrics, inband_error or redirect_metrics", f.Mode)
	}
	check(f.Status >= 400 && f.Status <= 599, "status is %d: want 400 to 599", f.Status)
	check(f.Factor > 0 && f.Factor <= 1e6, "factor is %g: want above 0, at most 1e6", f.Factor)
	check(f.AfterTokens >= -1, "after_tokens is %d: want -1 or more", f.AfterTokens)
	check(f.Share > 0 && f.Share <= 1, "share is %g: want above 0, at most 1", f.Share)
	check(f.Count >= 0, "count is %d: want 0 or more", f.Count)
	if f.RestartAfter != "" {
		d, err := time.ParseDuration(f.RestartAfter)
		check(err == nil && d >= 0, "restart_after is %q: want a duration like 500ms", f.RestartAfter)
	}
	return errors.Join(errs...)
}

// faultBox holds the present fault and decides whom it hits.
type faultBox struct {
	mu     sync.Mutex
	fault  Fault
	seen   int    // requests that it could hit
	hits   int    // requests that it did
	frozen []byte // the metrics page of ModeFreezeMetrics
}

func (b *faultBox) set(f Fault) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fault, b.seen, b.hits, b.frozen = f, 0, 0, nil
}

// faultState is the answer of /sim/faults.
type faultState struct {
	Fault
	Hits int `json:"hits"`
}

func (b *faultBox) state() faultState {
	b.mu.Lock()
	defer b.mu.Unlock()
	return faultState{b.fault, b.hits}
}

// strikes returns the fault that hits a request, ModeNone where none does.
func (b *faultBox) strikes(method, path string) Fault {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.fault
	switch f.Mode {
	case ModeError, ModeHang, ModeBreak, ModeInbandError:
	default:
		return Fault{Mode: ModeNone}
	}
	if !strings.HasPrefix(path, f.Path) || f.Path == "" && method != http.MethodPost {
		return Fault{Mode: ModeNone}
	}
	// Of n requests floor(n x share) are hit, so that they spread evenly.
	before := int(float64(b.seen) * f.Share)
	b.seen++
	if int(float64(b.seen)*f.Share) == before {
		return Fault{Mode: ModeNone}
	}
	b.hits++
	if f.Count > 0 && b.hits >= f.Count {
		b.fault.Mode = ModeNone
	}
	return f
}

// hit applies the fault to a request and reports whether that was the answer.
func (x *call) hit() bool {
	x.fault = x.e.faults.strikes(x.r.Method, x.r.URL.Path)
	switch {
	case x.fault.Mode == ModeError:
		x.fail(statusError(x.fault.Status))
	case x.fault.Mode == ModeHang:
		select {
		case <-x.r.Context().Done():
		case <-x.core.done:
			x.cut()
		}
	case x.fault.Mode == ModeBreak && x.fault.AfterTokens < 0:
		x.cut()
	default:
		return false
	}
	return true
}

// getFaults serves GET /sim/faults.
func (x *call) getFaults() { x.json(http.StatusOK, x.e.faults.state()) }

// setFaults serves POST /sim/faults.
func (x *call) setFaults() {
	f := DefaultFault()
	dec := json.NewDecoder(bytes.NewReader(x.body))
	dec.DisallowUnknownFields()
	err := dec.Decode(&f)
	if err == nil {
		if _, more := dec.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("more than one JSON value")
		}
	}
	if err == nil {
		err = f.Validate()
	}
	if err != nil {
		x.fail(&apiError{http.StatusBadRequest, "BadRequestError", "", "fault: " + err.Error()})
		return
	}
	var frozen []byte
	if f.Mode == ModeFreezeMetrics {
		frozen = x.page()
	}
	x.e.faults.set(f)
	x.e.faults.freeze(frozen)
	factor := 1.0
	if f.Mode == ModeSlow {
		factor = f.Factor
	}
	x.core.slow(factor)
	if f.Mode == ModeCrash {
		x.w.Header().Set("Connection", "close")
	}
	x.json(http.StatusOK, x.e.faults.state())
	if f.Mode == ModeCrash {
		_ = http.NewResponseController(x.w).Flush() // the answer leaves before the port closes
		back := time.Duration(-1)
		if f.RestartAfter != "" {
			back, _ = time.ParseDuration(f.RestartAfter) // it was validated
		}
		x.e.crash(back)
	}
}

func (b *faultBox) freeze(page []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.frozen = page
}
