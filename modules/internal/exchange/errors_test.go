package exchange

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/llmgw/llmgw/modules/internal/openai"
)

func TestAnswerAndLabel(t *testing.T) {
	for _, c := range []struct {
		class      error
		status     int
		typ        string
		param      string
		code       string
		retryAfter time.Duration
		label      string
	}{
		{ErrRequest, 400, openai.TypeInvalidRequest, "", "", 0, "bad_request"},
		{ErrModel, 404, openai.TypeInvalidRequest, "model", "model_not_found", 0, "model_not_found"},
		{ErrTooLarge, 413, openai.TypeInvalidRequest, "", "request_too_large", 0, "too_large"},
		{ErrBusy, 503, openai.TypeServer, "", "gateway_busy", time.Second, "busy"},
		{ErrUnavailable, 503, openai.TypeServer, "", "no_replica_available", 5 * time.Second, "no_replica"},
		{ErrFull, 503, openai.TypeServer, "", "replicas_full", time.Second, "full"},
		{ErrQueueFull, 503, openai.TypeServer, "", "queue_full", time.Second, "queue_full"},
		{ErrQueueTimeout, 504, openai.TypeServer, "", "queue_timeout", time.Second, "queue_timeout"},
		{ErrDeadline, 429, openai.TypeRateLimit, "", "deadline", time.Second, "deadline"},
		{ErrDisplaced, 503, openai.TypeServer, "", "displaced", time.Second, "displaced"},
		{ErrTokens, 400, openai.TypeInvalidRequest, "", "context_length_exceeded", 0, "too_many_tokens"},
		{ErrReplica, 502, openai.TypeServer, "", "replica_failed", time.Second, "replica_failed"},
		{ErrTimeout, 504, openai.TypeServer, "", "replica_timeout", 0, "timeout"},
		{ErrDenied, 401, openai.TypeAuthentication, "", "invalid_api_key", 0, "denied"},
		{ErrPath, 404, openai.TypeInvalidRequest, "", "unknown_path", 0, "unknown_path"},
		{ErrMethod, 405, openai.TypeInvalidRequest, "", "method_not_allowed", 0, "wrong_method"},
		{ErrUpgrade, 501, openai.TypeServer, "", "upgrade_not_supported", 0, "upgrade"},
		{ErrInternal, 500, openai.TypeServer, "", "internal_error", 0, "internal"},
	} {
		t.Run(c.label, func(t *testing.T) {
			for what, err := range map[string]error{
				"made by Fail": Fail(c.class, "say %s", "this"),
				"wrapped":      fmt.Errorf("outer: %w", Fail(c.class, "say %s", "this")),
			} {
				e := Answer(err)
				if e.Status != c.status || e.Type != c.typ || e.Param != c.param || e.Code != c.code || e.RetryAfter != c.retryAfter || e.Message != "say this" {
					t.Errorf("%s: answer %+v", what, e)
				}
				if got := Label(err); got != c.label {
					t.Errorf("%s: label %q", what, got)
				}
				if !errors.Is(err, c.class) {
					t.Errorf("%s: no %v", what, c.class)
				}
			}
			// A class with a cause that is not for clients: the cause stays in.
			inner := fmt.Errorf("%w: %w", c.class, errors.New("dial tcp 10.0.0.5: hunter2"))
			if e := Answer(inner); e.Status != c.status || strings.Contains(e.Message, "hunter2") || e.Message != c.class.Error() {
				t.Errorf("answer with a cause %+v", e)
			}
		})
	}
	if len(classes) != 18 {
		t.Errorf("%d classes, 18 in this table", len(classes))
	}
}

func TestAnswerToErrorsWithoutAClass(t *testing.T) {
	for name, c := range map[string]struct {
		err    error
		status int
		text   string
		label  string
	}{
		"an engine's answer": {
			openai.NewError(429, "", "rate_limit", "slow down"), 429, "slow down", "replica_failed",
		},
		"an engine's failure": {
			openai.NewError(500, "", "", "CUDA error"), 500, "CUDA error", "replica_failed",
		},
		"one that is wrapped": {
			fmt.Errorf("outer: %w", openai.NewError(400, "n", "", "n is too large")), 400, "n is too large", "bad_request",
		},
		"anything else": {
			errors.New("open /etc/secret: hunter2"), 500, "the gateway failed to handle the request", "internal",
		},
		"an I/O error": {
			io.ErrUnexpectedEOF, 500, "the gateway failed to handle the request", "internal",
		},
		"a client that left": {
			fmt.Errorf("read: %w", context.Canceled), 500, "the gateway failed to handle the request", "client_gone",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if e := Answer(c.err); e.Status != c.status || e.Message != c.text {
				t.Errorf("answer %+v", e)
			}
			if got := Label(c.err); got != c.label {
				t.Errorf("label %q, want %q", got, c.label)
			}
		})
	}
}
