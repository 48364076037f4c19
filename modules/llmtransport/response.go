package llmtransport

import (
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/llmgw/llmgw/modules/internal/exchange"
	"github.com/llmgw/llmgw/modules/internal/openai"
)

// answered prepares a replica's answer for the client: headers, errors, and
// what watches the body go by.
func answered(x *exchange.Exchange, res *http.Response) *http.Response {
	at := x.Runtime().Now()
	if e := x.Endpoint(); e != nil && res.StatusCode < 500 {
		e.Replica.Health.Answered()
	}
	x.Record(func(r *exchange.Result) { r.Headers, r.Status = at, res.StatusCode })
	if res.StatusCode == http.StatusSwitchingProtocols {
		setHeaders(x, res)
		return res // from here on it is a tunnel
	}
	if res.StatusCode >= 300 {
		return refused(x, res)
	}
	setHeaders(x, res)
	x.DropBody()
	kind := mediaType(res.Header.Get("Content-Type"))
	if e := res.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		kind = "" // asked for or not, it cannot be read
	}
	w := &watched{x: x}
	switch kind {
	case eventType:
		tap := openai.NewTap(res.Body, openai.TapOptions{
			WithholdUsage: x.InjectsUsage(), WithholdDone: true, RequireEnd: true,
			BreakEvent: breakEvent(x.Route),
			OnFirst:    func() { x.Record(func(r *exchange.Result) { r.FirstToken = x.Runtime().Now() }) },
		})
		w.ReadCloser, w.result = tap, tap.Result
		eventStream(res)
	case jsonType:
		unary := openai.NewUnary(res.Body)
		w.ReadCloser, w.result = unary, unary.Result
	default:
		w.ReadCloser = res.Body
	}
	res.Body = w
	return res
}

// mediaType returns the bare media type. What engines send as a rule needs no
// parsing.
func mediaType(contentType string) string {
	switch contentType {
	case jsonType, eventType:
		return contentType
	case eventType + "; charset=utf-8":
		return eventType
	}
	kind, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return ""
	}
	return kind
}

const (
	jsonType  = "application/json"
	eventType = "text/event-stream"
)

// eventStream asks everything on the way to the client to let events through
// one by one: the Incremental field (RFC 10036) Caddy's own handlers,
// no-transform those that would compress, X-Accel-Buffering nginx.
func eventStream(res *http.Response) {
	h := res.Header
	h["Incremental"] = []string{"?1"}
	h["Cache-Control"] = []string{"no-cache, no-transform"}
	h["X-Accel-Buffering"] = []string{"no"}
	delete(h, "Content-Length")
	res.ContentLength = -1
}

// setHeaders takes from the engine's headers what is the gateway's to say, and
// says it.
func setHeaders(x *exchange.Exchange, res *http.Response) {
	h := res.Header
	exchange.StripWishes(h)
	// The front door has set the gateway's own id, and Caddy's server dates what
	// it sends. The rest is between the engine and its client, the gateway.
	for _, name := range []string{"X-Request-Id", "Date", "Server", "Set-Cookie"} {
		delete(h, name)
	}
	e := x.Endpoint()
	if e == nil {
		return
	}
	// Straight to the client where that is possible: Caddy makes a placeholder
	// of each header that comes with the response.
	if x.Answer != nil {
		h = x.Answer
	}
	// Requests go on at once, and there is no tree of prefixes to decide by. One
	// array for all values: each on its own would be an allocation.
	values := []string{e.Replica.ID, e.Pool, e.Served(x.Model), "0", "no_tree"}
	for i, name := range ownHeaders {
		h[name] = values[i : i+1 : i+1]
	}
}

// ownHeaders are the headers that say what became of a request.
var ownHeaders = [...]string{
	"X-Llmgw-Replica", "X-Llmgw-Pool", "X-Llmgw-Served-Model", "X-Llmgw-Queue-Ms", "X-Llmgw-Cache-Decision",
}

// maxError is how much of an engine's error is read.
const maxError = 64 << 10

// errorTimeout bounds the reading of an engine's error body.
const errorTimeout = 5 * time.Second

// refused turns an engine's error into OpenAI's shape.
func refused(x *exchange.Exchange, res *http.Response) *http.Response {
	stop := time.AfterFunc(errorTimeout, func() { res.Body.Close() })
	// What could be read of it is the best there is.
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxError))
	stop.Stop()
	res.Body.Close()
	e := openai.Normalize(res.StatusCode, body)
	switch {
	case res.StatusCode < 400:
		e = openai.NewError(http.StatusBadGateway, "", "engine_redirect",
			"the engine answered with a redirect, which the gateway does not follow: is the endpoint's address right?")
	case res.StatusCode == http.StatusUnauthorized || res.StatusCode == http.StatusForbidden:
		// The client's key was good: the one that failed is the gateway's.
		e = openai.NewError(http.StatusBadGateway, "", "engine_denied",
			"the engine refused the gateway's credential: the endpoint's api_key has to be set right")
	}
	if ep := x.Endpoint(); ep != nil && ep.APIKey != "" {
		e.Message = strings.ReplaceAll(e.Message, ep.APIKey, "[redacted]")
	}
	outcome := exchange.OutcomeClientError
	if e.Status >= 500 || e.Status == http.StatusTooManyRequests {
		outcome = exchange.OutcomeEngineError
	}
	x.Record(func(r *exchange.Result) { r.Status = e.Status })
	x.Finish(outcome)

	text := append(e.AppendJSON(nil, x.Route.Anthropic), '\n')
	retry := res.Header["Retry-After"]
	res.StatusCode, res.Status = e.Status, strconv.Itoa(e.Status)+" "+http.StatusText(e.Status)
	res.Header = http.Header{"Content-Type": {jsonType}, "Content-Length": {strconv.Itoa(len(text))}}
	if len(retry) > 0 {
		res.Header["Retry-After"] = retry
	}
	res.ContentLength = int64(len(text))
	res.Body = io.NopCloser(bytes.NewReader(text))
	res.Trailer = nil
	setHeaders(x, res)
	return res
}

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
	w.x.Finish(w.outcome(seen))
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
