package openai

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

func TestTypeOf(t *testing.T) {
	for status, want := range map[int]string{
		400: TypeInvalidRequest, 404: TypeInvalidRequest, 405: TypeInvalidRequest, 413: TypeInvalidRequest,
		422: TypeInvalidRequest, 409: TypeInvalidRequest, 401: TypeAuthentication, 403: TypePermission,
		429: TypeRateLimit, 500: TypeServer, 501: TypeServer, 502: TypeServer, 503: TypeServer, 504: TypeServer, 0: TypeServer,
	} {
		if got := TypeOf(status); got != want {
			t.Errorf("TypeOf(%d) = %s, want %s", status, got, want)
		}
	}
}

func TestErrorWrite(t *testing.T) {
	for _, tt := range []struct {
		err        *Error
		anthropic  bool
		status     int
		body       string
		retryAfter string
	}{
		{NewError(404, "model", CodeModelNotFound, `no model "x<y>"`), false, 404, `{"error":{"message":"no model \"x<y>\"","type":"invalid_request_error","param":"model","code":"model_not_found"}}`, ""},
		{NewError(503, "", "", "full").WithRetryAfter(1001 * time.Millisecond), false, 503, `{"error":{"message":"full","type":"server_error","param":null,"code":null}}`, "2"},
		{NewError(429, "", "insufficient_quota", "m").WithRetryAfter(time.Nanosecond), true, 429, `{"type":"error","error":{"message":"m","type":"rate_limit_error","param":null,"code":"insufficient_quota"}}`, "1"},
		{NewError(504, "", "", "m").WithRetryAfter(3 * time.Second), false, 504, `{"error":{"message":"m","type":"server_error","param":null,"code":null}}`, "3"},
		{&Error{Status: 7, Message: "m", Type: TypeServer, RetryAfter: -time.Second}, false, 500, `{"error":{"message":"m","type":"server_error","param":null,"code":null}}`, ""},
	} {
		w := httptest.NewRecorder()
		w.Header().Set("Content-Encoding", "gzip")
		tt.err.Write(w, tt.anthropic)
		r := w.Result()
		body, _ := io.ReadAll(r.Body)
		if r.StatusCode != tt.status || string(body) != tt.body+"\n" || r.Header.Get("Retry-After") != tt.retryAfter {
			t.Errorf("%d, Retry-After %q\n%s", r.StatusCode, r.Header.Get("Retry-After"), body)
		}
		if r.Header.Get("Content-Type") != "application/json" || r.Header.Get("Content-Encoding") != "" ||
			r.Header.Get("Content-Length") != fmt.Sprint(len(body)) || !json.Valid(body) {
			t.Errorf("headers %v, body %s", r.Header, body)
		}
	}
}

func TestErrorCause(t *testing.T) {
	plain := NewError(http.StatusBadGateway, "", "", "the replica is gone")
	e := plain.WithCause(io.ErrUnexpectedEOF)
	if !errors.Is(e, io.ErrUnexpectedEOF) || e.Error() != "the replica is gone: unexpected EOF" {
		t.Errorf("%v", e)
	}
	if plain.Unwrap() != nil || plain.Error() != "the replica is gone" {
		t.Errorf("the original changed: %v", plain)
	}
	var as *Error
	if !errors.As(fmt.Errorf("outer: %w", e), &as) || as.Status != http.StatusBadGateway {
		t.Error("not found in a chain")
	}
	if s := string(e.AppendJSON(nil, false)); s != `{"error":{"message":"the replica is gone","type":"server_error","param":null,"code":null}}` {
		t.Errorf("the cause reached the client: %s", s)
	}
}
