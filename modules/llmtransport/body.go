package llmtransport

import (
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/llmgw/llmgw/modules/internal/exchange"
	"github.com/llmgw/llmgw/modules/internal/openai"
)

// breakEvent returns what a client of the route reads when its stream breaks
// off. The Responses and Messages APIs name their events.
func breakEvent(route *exchange.Route) func(error) []byte {
	if route.Usage {
		return openai.StreamBroken
	}
	return namedBreak
}

func namedBreak(error) []byte {
	e := openai.NewError(http.StatusBadGateway, "", openai.CodeStreamBroken, "the replica broke off the stream")
	return append(e.AppendJSON([]byte("event: error\ndata: "), true), "\n\n"...)
}

// watched is an answer's body on its way to the client. What it saw goes into
// the exchange when it is closed, which Caddy does however the copy ended.
type watched struct {
	io.ReadCloser
	x      *exchange.Exchange
	result func() openai.Result // nil for what is neither events nor JSON
	err    error                // the first one of Read
	closed bool
}

// Read implements io.Reader.
func (w *watched) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	if err == nil {
		return n, nil
	}
	if errors.Is(err, io.EOF) && w.cut() {
		err = io.ErrUnexpectedEOF
	}
	if w.err == nil {
		w.err = err
	}
	return n, err
}

// cut reports whether an answer that seems to have ended lacks its end.
func (w *watched) cut() bool {
	if w.result == nil {
		return false
	}
	seen := w.result()
	return !seen.Complete && !seen.ErrorFrame && !seen.Aborted
}

// Close implements io.Closer.
func (w *watched) Close() error {
	if w.closed {
		return nil
	}
	w.closed = true
	var seen openai.Result
	if w.result != nil {
		seen = w.result()
	} else {
		seen.Complete = errors.Is(w.err, io.EOF)
	}
	w.x.Record(func(r *exchange.Result) {
		r.Usage, r.UsageKnown, r.Events = seen.Usage, seen.HaveUsage, int(seen.Events)
	})
	outcome := w.outcome(seen)
	switch outcome {
	case exchange.OutcomeOK:
		w.x.Succeeded()
	case exchange.OutcomeBroken, exchange.OutcomeEngineError:
		w.x.ReplicaFailed("answer: " + string(outcome))
	}
	w.x.Finish(outcome)
	return w.ReadCloser.Close()
}

func (w *watched) outcome(seen openai.Result) exchange.Outcome {
	switch {
	case seen.ErrorFrame || seen.Aborted:
		return exchange.OutcomeEngineError
	case seen.Complete, seen.Done:
		// A client may leave at the end mark, without waiting for the last byte.
		return exchange.OutcomeOK
	case w.err == nil || errors.Is(w.err, context.Canceled):
		// Nobody read it to its end: the client is gone.
		return exchange.OutcomeCancelled
	}
	return exchange.OutcomeBroken
}
