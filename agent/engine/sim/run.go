package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"time"
)

// ErrCrashed is what Run returns after the crash fault.
var ErrCrashed = errors.New("simulator: crashed, as the crash fault asked")

// lastWords is how long answers that were cut short by a stop may take to
// reach their clients.
const lastWords = time.Second

// Start runs an engine at an address, whose port 0 takes one that is free, until ctx is done. ended
// gets what [Engine.Run] returns.
func Start(ctx context.Context, cfg Config, listen string, ended chan<- error) (address string, err error) {
	e, err := New(cfg)
	if err != nil {
		return "", err
	}
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", listen)
	if err != nil {
		e.Close()
		return "", err
	}
	go func() {
		defer e.Close()
		ended <- e.Run(ctx, ln)
	}()
	return ln.Addr().String(), nil
}

// Run serves on ln until ctx is done, which is its SIGTERM, and closes ln. It
// returns nil after a stop, [ErrCrashed] after a crash without restart, or what
// went wrong with the port. Start and restart close the port and open it again
// on the same address, since an engine that loads refuses connections.
func (e *Engine) Run(ctx context.Context, ln net.Listener) error {
	delay := e.cfg.StartupDelay
	for {
		if delay > 0 {
			var err error
			if ln, err = reopen(ctx, ln, delay); err != nil || ln == nil {
				e.Close()
				return err
			}
		}
		back, err := e.life(ctx, ln)
		if err != nil || back < 0 {
			return err
		}
		// At least a moment, so that the port is seen closed.
		delay = max(back, time.Millisecond)
		if again, err := e.revive(); err != nil || !again {
			return err
		}
	}
}

// reopen closes ln and listens on its address after delay; it returns nil
// where ctx ends first.
func reopen(ctx context.Context, ln net.Listener, delay time.Duration) (net.Listener, error) {
	addr := ln.Addr()
	if err := ln.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return nil, fmt.Errorf("simulator: close %s before the start delay: %w", addr, err)
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return nil, nil
	}
	again, err := new(net.ListenConfig).Listen(ctx, addr.Network(), addr.String())
	if err != nil && ctx.Err() != nil {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("simulator: open %s again: %w", addr, err)
	}
	return again, nil
}

// life serves until the engine stops or crashes. It returns when to come back,
// below zero for never.
func (e *Engine) life(ctx context.Context, ln net.Listener) (time.Duration, error) {
	srv := &http.Server{
		Handler: e.Handler(), IdleTimeout: e.cfg.KeepAlive, ReadHeaderTimeout: time.Minute,
		ErrorLog: log.New(io.Discard, "", 0), // what clients do wrong is theirs to log
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	defer srv.Close()
	c := e.core.Load()
	select {
	case err := <-served:
		c.close(endDead)
		return -1, fmt.Errorf("simulator: serve on %s: %w", ln.Addr(), err)
	case <-ctx.Done():
	case <-c.done: // a crash, or Close was called
	}
	if ctx.Err() != nil && e.cfg.ShutdownTimeout > 0 {
		// Like vLLM it stays for the whole time, even when it has nothing to do.
		c.draining.Store(true)
		timer := time.NewTimer(e.cfg.ShutdownTimeout)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-c.done:
		}
	}
	if c.crashed.Load() {
		_ = srv.Close() // as a dead process would: no goodbye
		back := <-e.crashes
		if back < 0 {
			return -1, ErrCrashed
		}
		return back, nil
	}
	e.Close()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWords)
	defer cancel()
	if err := srv.Shutdown(last); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return -1, fmt.Errorf("simulator: close %s: %w", ln.Addr(), err)
	}
	return -1, nil
}
