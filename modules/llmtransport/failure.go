package llmtransport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"

	"github.com/llmgw/llmgw/modules/internal/exchange"
	"github.com/llmgw/llmgw/modules/internal/h1"
)

// failed notes what a round trip without an answer means; limit is the time
// limit that ended it, or nil.
func failed(ctx context.Context, x *exchange.Exchange, limit, err error) (_ *http.Response, retry bool, _ error) {
	if ctx.Err() != nil {
		x.Finish(exchange.OutcomeCancelled)
		return nil, false, context.Canceled
	}
	switch {
	case limit != nil:
		retry = x.GaveUp(limit)
	case isShortage(err):
		x.Fail(exchange.FailWith(exchange.ErrBusy, err, "the gateway has no connection to spare: try again in a moment"))
	case isOwn(err):
		x.Fail(fmt.Errorf("%w: %w", exchange.ErrInternal, err))
	case isDial(err):
		retry = x.ConnectFailed(err, !isLate(err))
	case isRefusal(err):
		// It had been sent before: the replica died with it.
		x.Unreachable(err)
		retry = x.BrokeOff(err, true)
	case isStale(err):
		retry = x.Stale(err)
	default:
		retry = x.BrokeOff(err, isBreak(err))
	}
	// Caddy must not take it for a DialError, whatever it was.
	return nil, retry, fmt.Errorf("%w: %v", exchange.ErrReplica, err) //nolint:errorlint // its kind is what is hidden
}

// notLoaded notes what it means that a replica has not loaded the adapter that a request is for.
func notLoaded(ctx context.Context, x *exchange.Exchange, err error) (*http.Response, bool, error) {
	switch {
	case exchange.IsTotal(err):
		return failed(ctx, x, err, err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return failed(ctx, x, nil, unconnected{err})
	case ctx.Err() != nil || isShortage(err):
		return failed(ctx, x, nil, err)
	}
	retry := x.NotLoaded(err)
	return nil, retry, fmt.Errorf("%w: %v", exchange.ErrReplica, err) //nolint:errorlint // as above
}

// isShortage reports whether this machine, not the replica, is the reason.
func isShortage(err error) bool {
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.EADDRNOTAVAIL, syscall.ENOBUFS, syscall.ENOMEM} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// isOwn reports whether the request was not fit to be sent, which no replica is
// to blame for.
func isOwn(err error) bool {
	if _, ok := errors.AsType[unfitError](err); ok {
		return true
	}
	fast, ok := errors.AsType[*h1.Error](err)
	return ok && (fast.Op == h1.OpRequest || fast.Op == h1.OpBody)
}

// isBreak reports whether the connection ended without a byte of an answer.
func isBreak(err error) bool {
	if fast, ok := errors.AsType[*h1.Error](err); ok {
		return fast.Sent && !fast.Answered
	}
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		strings.Contains(err.Error(), "server closed idle connection") // net/http has no name for it
}

// isStale reports whether the request met a kept connection that was closed.
func isStale(err error) bool {
	fast, ok := errors.AsType[*h1.Error](err)
	return ok && fast.Stale
}

// isRefusal reports whether a request that was to be sent anew found no
// connection.
func isRefusal(err error) bool {
	fast, ok := errors.AsType[*h1.Error](err)
	return ok && fast.Op == h1.OpDial && fast.Sent
}

// isLate reports whether it was this process that was too slow to connect.
func isLate(err error) bool {
	fast, ok := errors.AsType[*h1.Error](err)
	return ok && fast.Late
}

// isDial reports whether no connection was made, so that nothing was sent.
func isDial(err error) bool {
	if fast, ok := errors.AsType[*h1.Error](err); ok {
		return fast.Op == h1.OpDial && !fast.Sent
	}
	_, ok := errors.AsType[unconnected](err)
	return ok
}
