package exchange

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/llmgw/llmgw/modules/internal/openai"
)

// The classes of failure: what kind of thing went wrong, for errors.Is, for
// metrics and for the status that a client gets. Causes are wrapped in them.
var (
	// ErrRequest is a request that cannot be served as it is.
	ErrRequest = errors.New("bad request")
	// ErrModel is a model that does not exist, or not for this client.
	ErrModel = errors.New("model not found")
	// ErrTooLarge is a body over the limit.
	ErrTooLarge = errors.New("body too large")
	// ErrBusy is a gateway that holds as many bodies as it may.
	ErrBusy = errors.New("too many bodies in flight")
	// ErrUnavailable is a model without a replica that may be used now.
	ErrUnavailable = errors.New("no replica available")
	// ErrFull is a model all of whose replicas have as much as they take.
	ErrFull = errors.New("all replicas are full")
	// ErrQueueFull, ErrQueueTimeout, ErrDeadline and ErrDisplaced are requests that
	// could not wait for their turn, or not any longer.
	ErrQueueFull    = errors.New("queue full")
	ErrQueueTimeout = errors.New("waited too long")
	ErrDeadline     = errors.New("would wait too long")
	ErrDisplaced    = errors.New("displaced")
	// ErrTokens is a request that no replica has room for, however idle.
	ErrTokens = errors.New("too many tokens")
	// ErrReplica is a replica that could not be reached or did not answer.
	ErrReplica = errors.New("replica failed")
	// ErrTimeout is a replica that took too long.
	ErrTimeout = errors.New("timeout")
	// ErrDenied is a client without a valid key.
	ErrDenied = errors.New("not authenticated")
	// ErrPath and ErrMethod are requests to no endpoint.
	ErrPath   = errors.New("unknown path")
	ErrMethod = errors.New("wrong method")
	// ErrUpgrade is a protocol switch that is not supported.
	ErrUpgrade = errors.New("upgrade not supported")
	// ErrInternal is a fault of the gateway's own.
	ErrInternal = errors.New("internal error")
)

// retryUnavailable is what a client is told to wait when no replica is
// available.
const retryUnavailable = 5 * time.Second

// classes maps each class to what a client gets. It is the one place that does.
var classes = []struct {
	class  error
	label  string
	status int
	param  string
	code   string
	retry  time.Duration
}{
	{ErrRequest, "bad_request", http.StatusBadRequest, "", "", 0},
	{ErrModel, "model_not_found", http.StatusNotFound, "model", "model_not_found", 0},
	{ErrTooLarge, "too_large", http.StatusRequestEntityTooLarge, "", "request_too_large", 0},
	{ErrBusy, "busy", http.StatusServiceUnavailable, "", "gateway_busy", time.Second},
	{ErrUnavailable, "no_replica", http.StatusServiceUnavailable, "", "no_replica_available", retryUnavailable},
	{ErrFull, "full", http.StatusServiceUnavailable, "", "replicas_full", time.Second},
	{ErrQueueFull, "queue_full", http.StatusServiceUnavailable, "", "queue_full", time.Second},
	{ErrQueueTimeout, "queue_timeout", http.StatusGatewayTimeout, "", "queue_timeout", time.Second},
	{ErrDeadline, "deadline", http.StatusTooManyRequests, "", "deadline", time.Second},
	{ErrDisplaced, "displaced", http.StatusServiceUnavailable, "", "displaced", time.Second},
	{ErrTokens, "too_many_tokens", http.StatusBadRequest, "", "context_length_exceeded", 0},
	{ErrReplica, "replica_failed", http.StatusBadGateway, "", "replica_failed", time.Second},
	{ErrTimeout, "timeout", http.StatusGatewayTimeout, "", "replica_timeout", 0},
	{ErrDenied, "denied", http.StatusUnauthorized, "", "invalid_api_key", 0},
	{ErrPath, "unknown_path", http.StatusNotFound, "", "unknown_path", 0},
	{ErrMethod, "wrong_method", http.StatusMethodNotAllowed, "", "method_not_allowed", 0},
	{ErrUpgrade, "upgrade", http.StatusNotImplemented, "", "upgrade_not_supported", 0},
	{ErrInternal, "internal", http.StatusInternalServerError, "", "internal_error", 0},
}

// Classes returns all classes.
func Classes() (all []error) {
	for _, c := range classes {
		all = append(all, c.class)
	}
	return all
}

// Fail returns an error of the class with a message for the client.
func Fail(class error, format string, args ...any) error {
	return fmt.Errorf("%w: %w", class, clientError{fmt.Errorf(format, args...)})
}

// FailWith does so and keeps a cause that is for the log alone.
func FailWith(class, cause error, format string, args ...any) error {
	return fmt.Errorf("%w: %w: %w", class, clientError{fmt.Errorf(format, args...)}, cause)
}

// clientError is the part of a failure that its client may read.
type clientError struct{ error }

// retryError is a failure whose client is told when to come back.
type retryError struct {
	error
	after time.Duration
}

// Unwrap returns the failure.
func (e *retryError) Unwrap() error { return e.error }

// retryIn makes the client of a failure wait so long in the place of what its class
// says; 0 leaves that.
func retryIn(err error, after time.Duration) error {
	if after == 0 {
		return err
	}
	return &retryError{err, after}
}

// Answer returns what a client is told of a failure. An error without a class
// is internal, and its text stays inside.
func Answer(err error) *openai.Error {
	if e, ok := errors.AsType[*openai.Error](err); ok {
		return e
	}
	for _, c := range classes {
		if !errors.Is(err, c.class) {
			continue
		}
		message := c.class.Error()
		if ce, ok := errors.AsType[clientError](err); ok {
			message = ce.Error()
		}
		retry := c.retry
		if r, ok := errors.AsType[*retryError](err); ok {
			retry = r.after
		}
		return openai.NewError(c.status, c.param, c.code, message).WithRetryAfter(retry)
	}
	return openai.NewError(http.StatusInternalServerError, "", "internal_error", "the gateway failed to handle the request")
}

// Refused reports whether an error is an engine's own, kept because no replica
// was left that would have done better.
func Refused(err error) bool {
	e, ok := errors.AsType[*openai.Error](err)
	return ok && (e.Status >= http.StatusInternalServerError || e.Status == http.StatusTooManyRequests)
}

// Label returns the class of a failure as a metric label, from a closed set.
func Label(err error) string {
	if errors.Is(err, context.Canceled) {
		return "client_gone"
	}
	for _, c := range classes {
		if errors.Is(err, c.class) {
			return c.label
		}
	}
	switch e, ok := errors.AsType[*openai.Error](err); {
	case ok && Refused(e):
		return "replica_failed"
	case ok && e.Status < http.StatusInternalServerError:
		return "bad_request"
	}
	return "internal"
}
