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
		return plainBreak
	}
	return namedBreak
}

func plainBreak(err error) []byte { return appendBreak([]byte("data: "), err, false) }
func namedBreak(err error) []byte { return appendBreak([]byte("event: error\ndata: "), err, true) }

func appendBreak(b []byte, err error, named bool) []byte {
	e := openai.NewError(http.StatusBadGateway, "", openai.CodeStreamBroken, exchange.Answer(broken(err)).Message)
	return append(e.AppendJSON(b, named), "\n\n"...)
}

// broken returns why an answer that had begun did not come to its end: a time
// limit, or the replica.
func broken(err error) error {
	if errors.Is(err, exchange.ErrTimeout) {
		return err
	}
	return exchange.FailWith(exchange.ErrReplica, err, "the replica broke off the stream")
}

// Read implements io.Reader.
func (a *attempt) Read(p []byte) (int, error) {
	a.watch.Reading()
	n, err := a.src.Read(p)
	a.watch.Read()
	return n, a.ended(err)
}

// next is Read without the copy, for a stream of events.
func (a *attempt) next() ([]byte, error) {
	a.watch.Reading()
	b, err := a.tap.Next()
	a.watch.Read()
	return b, a.ended(err)
}

// ended returns what reading ends with where the answer gave err, nil included.
func (a *attempt) ended(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, io.EOF) && a.cut() {
		err = io.ErrUnexpectedEOF
	}
	if a.err == nil {
		a.err = err
	}
	return err
}

// cut reports whether an answer that seems to have ended lacks its end.
func (a *attempt) cut() bool {
	if a.result == nil {
		return false
	}
	seen := a.result()
	return !seen.Complete && !seen.ErrorFrame && !seen.Aborted
}

// Close implements io.Closer. What was seen goes into the exchange now: Caddy
// closes the body however the copy ended.
func (a *attempt) Close() error {
	if a.closed {
		return nil
	}
	a.closed = true
	var seen openai.Result
	if a.result != nil {
		seen = a.result()
	} else {
		seen.Complete = errors.Is(a.err, io.EOF)
	}
	a.x.Record(func(r *exchange.Result) {
		r.Usage, r.UsageKnown, r.Events = seen.Usage, seen.HaveUsage, int(seen.Events)
	})
	outcome := a.outcome(seen)
	switch outcome {
	case exchange.OutcomeOK, exchange.OutcomeClientError:
		a.x.Succeeded()
	case exchange.OutcomeBroken, exchange.OutcomeEngineError:
		if !exchange.IsTotal(a.watch.Cause()) {
			a.x.ReplicaFailed(failures[outcome])
		}
	}
	if outcome == exchange.OutcomeBroken {
		a.x.Fail(broken(a.err))
	}
	a.x.Finish(outcome)
	a.watch.Stop()
	return a.src.Close()
}

// failures say what an answer that failed did.
var failures = map[exchange.Outcome]string{
	exchange.OutcomeBroken:      "broke off an answer",
	exchange.OutcomeEngineError: "error inside an answer",
}

func (a *attempt) outcome(seen openai.Result) exchange.Outcome {
	switch {
	case seen.ClientError && !seen.Aborted:
		return exchange.OutcomeClientError
	case seen.ErrorFrame || seen.Aborted:
		return exchange.OutcomeEngineError
	case seen.Complete, seen.Done:
		// A client may leave at the end mark, without waiting for the last byte.
		return exchange.OutcomeOK
	case a.err == nil || errors.Is(a.err, context.Canceled):
		// Nobody read it to its end: the client is gone.
		return exchange.OutcomeCancelled
	}
	return exchange.OutcomeBroken
}
