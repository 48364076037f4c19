package openai

import (
	"net/http"
	"strconv"
	"time"
)

// Error is an error as OpenAI's clients read it. The zero value of Param and Code is written as
// null. An Error is immutable once it is shared; its methods are safe for concurrent use.
type Error struct {
	Status     int           // HTTP status, 400..599
	Message    string        // for people: what is wrong, where, and what to do
	Type       string        // one of the Type constants, see TypeOf
	Param      string        // the request field at fault
	Code       string        // machine-readable cause, one of the Code constants or an engine's own word
	RetryAfter time.Duration // when a retry can help, 0 for never

	cause error
}

// OpenAI's error types, chosen by status alone: see TypeOf.
const (
	TypeInvalidRequest = "invalid_request_error"
	TypeAuthentication = "authentication_error"
	TypePermission     = "permission_error"
	TypeRateLimit      = "rate_limit_error"
	TypeServer         = "server_error"
)

// Codes that clients act upon. Packages above add their own.
const (
	CodeContextLength = "context_length_exceeded" // the prompt does not fit; clients shorten and retry
	CodeModelNotFound = "model_not_found"
	CodeStreamBroken  = "stream_broken" // in a stream's error event: the answer is incomplete
)

// TypeOf is the table from an HTTP status to OpenAI's error type
// (https://platform.openai.com/docs/guides/error-codes). Any other 4xx is an invalid request,
// everything else the server's fault.
func TypeOf(status int) string {
	switch {
	case status == http.StatusUnauthorized:
		return TypeAuthentication
	case status == http.StatusForbidden:
		return TypePermission
	case status == http.StatusTooManyRequests:
		return TypeRateLimit
	case status >= 400 && status < 500:
		return TypeInvalidRequest
	default:
		return TypeServer
	}
}

// NewError makes an error with the type that belongs to the status. Param and code may be empty.
func NewError(status int, param, code, message string) *Error {
	return &Error{Status: status, Message: message, Type: TypeOf(status), Param: param, Code: code}
}

// WithCause returns a copy of e that wraps cause. The cause is for logs and errors.Is; a client
// never sees it.
func (e *Error) WithCause(cause error) *Error {
	c := *e
	c.cause = cause
	return &c
}

// WithRetryAfter returns a copy of e that invites a retry after d.
func (e *Error) WithRetryAfter(d time.Duration) *Error {
	c := *e
	c.RetryAfter = d
	return &c
}

// Error returns the message, with the cause if there is one.
func (e *Error) Error() string {
	if e.cause != nil {
		return e.Message + ": " + e.cause.Error()
	}
	return e.Message
}

// Unwrap returns the cause, which may be nil.
func (e *Error) Unwrap() error { return e.cause }

// AppendJSON appends the error's body to dst. With anthropic it also has the top-level
// `"type":"error"` by which clients of /v1/messages know an error, so that both kinds of clients
// can read it.
func (e *Error) AppendJSON(dst []byte, anthropic bool) []byte {
	dst = append(dst, '{')
	if anthropic {
		dst = append(dst, `"type":"error",`...)
	}
	dst = append(dst, `"error":{"message":`...)
	dst = appendQuoted(dst, e.Message)
	dst = append(dst, `,"type":`...)
	dst = appendQuoted(dst, e.Type)
	dst = append(dst, `,"param":`...)
	dst = appendQuotedOrNull(dst, e.Param)
	dst = append(dst, `,"code":`...)
	dst = appendQuotedOrNull(dst, e.Code)
	return append(dst, "}}"...)
}

// RetrySeconds is a positive RetryAfter as the header of that name has it: whole seconds, rounded
// up.
func (e *Error) RetrySeconds() string {
	return strconv.FormatInt(int64((e.RetryAfter-1)/time.Second)+1, 10)
}

// Write answers a request with the error: status, JSON body, and Retry-After in whole seconds,
// rounded up, when RetryAfter is positive. A status outside 400..599 is written as 500. Errors of
// the connection are not reported: there is nobody left to tell.
func (e *Error) Write(w http.ResponseWriter, anthropic bool) {
	body := append(e.AppendJSON(nil, anthropic), '\n')
	h := w.Header()
	h.Del("Content-Encoding")
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	if e.RetryAfter > 0 {
		h.Set("Retry-After", e.RetrySeconds())
	}
	status := e.Status
	if status < 400 || status > 599 {
		status = http.StatusInternalServerError
	}
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

func appendQuotedOrNull(dst []byte, s string) []byte {
	if s == "" {
		return append(dst, "null"...)
	}
	return appendQuoted(dst, s)
}
