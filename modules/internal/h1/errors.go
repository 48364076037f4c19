package h1

import (
	"errors"
	"net"
)

// ErrUnsupported is returned for a request that this transport does not make.
// Nothing was done to it.
var ErrUnsupported = errors.New("h1: not a plain HTTP/1.1 request with a body of known length")

// ErrHeaderTooLarge is the cause where the head of an answer, with the interim
// answers before it, exceeds MaxResponseHeader.
var ErrHeaderTooLarge = errors.New("the response header is larger than the limit")

var (
	errShortBody = errors.New("the request body is shorter than its Content-Length")
	errLongBody  = errors.New("the request body is longer than its Content-Length")
)

// What an [Error] failed at.
const (
	OpRequest = "check request"     // the request cannot be written as HTTP/1.1
	OpBody    = "read request body" // the caller's body failed or had another length
	OpDial    = "dial"              // there is no connection, or the context had ended before
	OpWrite   = "write request"     // and no answer could be read either
	OpRead    = "read response"     // no valid head of an answer came
)

// Error says how far a round trip came that gave no answer. Unwrap gives the
// cause, which is the context's error if the context has ended, or the Abort's.
type Error struct {
	Op       string // one of the Op constants
	Addr     string // host:port, as in the URL
	Reused   bool   // the connection had served another request before
	Sent     bool   // at least one byte of the request was written, now or before it was sent anew
	Answered bool   // at least one byte of an answer came
	Late     bool   // a dial's time limit was noticed so late that this process is to blame, which does not get to run
	Stale    bool   // the connection was most likely closed before it was used

	err error
}

// Error implements error.
func (e *Error) Error() string {
	text := "h1: " + e.Op + ", " + e.Addr
	if e.Reused {
		text += " (kept connection)"
	}
	return text + ": " + e.err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.err }

// Timeout reports whether the cause is a timeout.
func (e *Error) Timeout() bool { return isTimeout(e.err) }

func isTimeout(err error) bool {
	netErr, ok := errors.AsType[net.Error](err)
	return ok && netErr.Timeout()
}
