package sim

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Version is the vLLM version that the engine claims to be.
const Version = "0.32.0"

// Engine is a simulated engine. Its methods may be called at the same time.
type Engine struct {
	cfg         Config
	fingerprint string // system_fingerprint
	routes      map[string]route

	mu      sync.Mutex // guards the life cycle: core and closed
	core    atomic.Pointer[core]
	crashes chan time.Duration // capacity 1: a crash, and when to come back (negative: never)
	closed  bool

	faults  faultBox
	journal journal
}

// New starts an engine that serves through Handler or Run until Close. It
// returns the faults of cfg, all of them.
func New(cfg Config) (*Engine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("simulator config: %w", err)
	}
	cfg = cfg.withDefaults()
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %d %d", cfg.Models, cfg.BlockSize, cfg.Seed))
	e := &Engine{
		cfg: cfg, fingerprint: "vllm-" + Version + "-" + hex.EncodeToString(sum[:4]),
		crashes: make(chan time.Duration, 1),
		journal: journal{keep: cfg.Journal},
	}
	e.routes = e.table()
	e.faults.set(Fault{Mode: ModeNone})
	c, err := newCore(cfg)
	if err != nil {
		return nil, err
	}
	e.core.Store(c)
	return e, nil
}

// Handler serves the engine's API without Run. StartupDelay and ShutdownTimeout
// have no effect then, and a crash cuts every connection for good.
func (e *Engine) Handler() http.Handler { return http.HandlerFunc(e.serve) }

// Close stops the engine: requests in flight end with finish_reason "abort". It
// may be called more than once.
func (e *Engine) Close() {
	e.mu.Lock()
	e.closed = true
	c := e.core.Load()
	e.mu.Unlock()
	c.close(endAbort)
}

// crash kills the engine: nothing in flight gets another byte, the cache and
// the counters are lost.
func (e *Engine) crash(back time.Duration) {
	select {
	case e.crashes <- back:
		e.core.Load().close(endDead)
	default: // it is already down
	}
}

// revive gives a crashed engine a new life, unless it was closed.
func (e *Engine) revive() (bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false, nil
	}
	e.faults.set(Fault{Mode: ModeNone})
	c, err := newCore(e.cfg)
	if err != nil {
		return false, err
	}
	e.core.Store(c)
	return true, nil
}
