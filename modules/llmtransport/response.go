package llmtransport

import (
	"bytes"
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
// what watches the body go by. It returns no answer, and retry, if the request
// is to go to another replica.
func (a *attempt) answered(res *http.Response) (_ *http.Response, retry bool, _ error) {
	x, at := a.x, a.x.Runtime().Now()
	if e := x.Endpoint(); e != nil && res.StatusCode < 500 {
		e.Replica.Health.Answered()
	}
	x.Record(func(r *exchange.Result) {
		if r.Headers = at; res.StatusCode < 300 { // else it may not be what the client gets
			r.Status = res.StatusCode
		}
	})
	if res.StatusCode == http.StatusSwitchingProtocols {
		setHeaders(x, res)
		a.watch.Stop()
		x.Succeeded()
		return res, false, nil // from here on it is a tunnel
	}
	if res.StatusCode >= 300 {
		defer a.watch.Stop()
		return refused(x, res)
	}
	setHeaders(x, res)
	x.DropBody()
	kind := mediaType(res.Header.Get("Content-Type"))
	if encoded(res) {
		kind = "" // asked for or not, it cannot be read
	}
	a.src = res.Body
	switch kind {
	case eventType:
		a.tap = openai.NewTap(res.Body, openai.TapOptions{
			WithholdUsage: x.InjectsUsage(), WithholdDone: true, RequireEnd: true, OtherEvents: !x.Route.Events,
			BreakEvent: breakEvent(x.Route), OnFirst: a.firstToken,
		})
		a.src, a.result = a.tap, a.tap.Result
		eventStream(res)
	case jsonType:
		a.watch.First(at)
		unary := openai.NewUnary(res.Body)
		a.src, a.result = unary, unary.Result
	default:
		a.watch.First(at)
	}
	res.Body = a
	return res, false, nil
}

// encoded reports whether a body is compressed, or the like.
func encoded(res *http.Response) bool {
	e := res.Header.Get("Content-Encoding")
	return e != "" && e != "identity"
}

// firstToken notes the first token of a stream.
func (a *attempt) firstToken() {
	now := a.x.Runtime().Now()
	a.watch.First(now)
	a.x.Alive()
	a.x.Record(func(r *exchange.Result) { r.FirstToken = now })
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
	queued := strconv.FormatInt(x.Queued().Milliseconds(), 10)
	// One array for all values: each on its own would be an allocation.
	values := []string{e.Replica.ID, e.Pool, e.Served(x.Serving()), queued, string(x.CacheDecision())}
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

var errRefused = errors.New("the replica refused the request")

// refused turns an engine's error into OpenAI's shape, or sends the request to
// another replica.
func refused(x *exchange.Exchange, res *http.Response) (_ *http.Response, retry bool, _ error) {
	stop := time.AfterFunc(errorTimeout, func() { res.Body.Close() })
	// What could be read of it is the best there is.
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxError))
	stop.Stop()
	res.Body.Close()
	if encoded(res) {
		body = nil // nobody could read it
	}
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
	retryAfter := res.Header["Retry-After"]
	if len(retryAfter) > 0 {
		if n, err := strconv.ParseUint(retryAfter[0], 10, 16); err == nil {
			e.RetryAfter = time.Duration(n) * time.Second
		}
	}
	if x.Refusal(e) {
		return nil, true, errRefused
	}
	if len(retryAfter) == 0 && e.RetryAfter > 0 {
		retryAfter = []string{e.RetrySeconds()}
	}
	outcome := exchange.OutcomeClientError
	if e.Status >= 500 || e.Status == http.StatusTooManyRequests {
		outcome = exchange.OutcomeEngineError
	}
	x.Record(func(r *exchange.Result) { r.Status = e.Status })
	x.Finish(outcome)

	text := append(e.AppendJSON(nil, x.Route.Anthropic), '\n')
	res.StatusCode, res.Status = e.Status, strconv.Itoa(e.Status)+" "+http.StatusText(e.Status)
	res.Header = http.Header{"Content-Type": {jsonType}, "Content-Length": {strconv.Itoa(len(text))}}
	if len(retryAfter) > 0 {
		res.Header["Retry-After"] = retryAfter
	}
	res.ContentLength = int64(len(text))
	res.Body = io.NopCloser(bytes.NewReader(text))
	res.Trailer = nil
	setHeaders(x, res)
	return res, false, nil
}
