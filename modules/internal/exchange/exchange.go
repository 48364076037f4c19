// Package exchange is one request's journey through the gateway: what was
// asked, by whom, which replica it went to, and how it ended. An Exchange is
// the only value that the modules of a request hand to each other.
package exchange

import (
	"net/http"
	"sync"
	"time"

	"github.com/llmgw/llmgw/modules/internal/admit"
	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/internal/fleet"
	"github.com/llmgw/llmgw/modules/internal/kvevents"
	"github.com/llmgw/llmgw/modules/internal/openai"
	"github.com/llmgw/llmgw/modules/internal/tenant"
	"github.com/llmgw/llmgw/modules/schedule"
)

// Exchange is one request and its answer. The goroutine that serves the
// request owns it; only [Exchange.End] may be called from any other.
type Exchange struct {
	// ID is the gateway's own id of the request, ClientID the one that the
	// client sent, if it is fit to be logged.
	ID, ClientID string
	// Start is when the request was accepted.
	Start time.Time
	// Route is the API endpoint that was asked.
	Route *Route
	// Key is the client's; nil while no keys are configured.
	Key *tenant.Key
	// Anonymous says that the client needs no key.
	Anonymous bool
	// Wishes are what the client asked of the gateway in headers.
	Wishes Wishes
	// Options are those of the site that the request came to.
	Options Options

	// Requested is the model as the client named it; Fields and Body are the
	// rest of the request. All are set by [Exchange.Read].
	Requested string
	Fields    openai.Fields
	body      []byte        // under mu, as the next two
	held      int64         // bytes of the budget
	readTime  time.Duration // how long the client took to send the body
	read      bool
	readErr   error
	injects   bool

	// Model is what Requested resolved to; set by [Exchange.Resolve]. It may be
	// served by a fallback, see [Exchange.Serving].
	Model *catalog.Model

	// Answer is the header of the answer to the client, as long as it can still
	// be changed; nil where nobody knows it.
	Answer http.Header

	rt     *Runtime
	holds  bool // of what rt needs
	header http.Header
	failed bool // no replica was left
	resent bool // after a connection broke without an answer
	// reloaded are the replicas that had lost the adapter that the request is for, reloads the one that
	// the next pick is to be for that.
	reloaded []*fleet.Replica
	reloads  *fleet.Replica
	listing  uint64        // the version of the replica's list of adapters that it was sent by
	loading  time.Duration // of adapters, that it has waited for

	// tokens are those of the prompt, or of most of it, for the model tokensOf; tokenized says
	// that they were asked for.
	tokens    kvevents.Tokens
	tokensOf  *catalog.Model
	tokenized bool

	retries bool // a retry was taken from the budget, and no replica picked for it yet

	class   Class
	serving *catalog.Model // the one whose replicas are tried: Model, or a fallback
	tries   int            // how many of them were picked
	passed  int            // how many of Model's fallbacks were taken or passed over

	// mu guards what follows, and the body, the budget and the writing of
	// Model above, against End.
	mu         sync.Mutex
	ended      bool
	endpoint   *catalog.Endpoint
	last       *catalog.Endpoint
	pool       string
	slot       fleet.Slot
	lease      *admit.Lease
	waited     time.Duration // in queues, until there was a lease
	sentAfter  time.Duration // of these, before it was first handed to a replica
	loadedIn   time.Duration // in which adapters were loaded, before that
	band       string        // as the gate has it, once it was asked
	attempts   int
	cache      schedule.CacheDecision // of the last pick
	matched    schedule.Gauge         // share of the prompt, there
	tried      []*fleet.Replica
	turnedAway []*fleet.Replica // those that have refused it as full
	// alone says that it is of many sequences and was refused: in its next turn it goes only
	// where nothing else is. joined is how often it was refused then, since others were there after all.
	alone  bool
	joined int
	err    error
	result Result
}

// Options are settings of a site that an exchange needs on its way.
type Options struct {
	// BodyLimit bounds the request's body, in bytes.
	BodyLimit int64
	// InjectUsage asks engines for the usage of streams whose client did not.
	InjectUsage bool
	// DebugHeaders lets clients without a key pin a replica and choose a
	// routing profile.
	DebugHeaders bool
}

// DefaultOptions are those of a route that sets none.
var DefaultOptions = Options{BodyLimit: 32 << 20, InjectUsage: true}

// Wishes are what a client may ask of the gateway.
type Wishes struct {
	// Replica pins one; it falls through when that one is not ready.
	Replica string
	// Profile is a routing profile.
	Profile string
	// Deadline is how long the client is willing to wait; 0 if it did not say.
	Deadline time.Duration
}

// Outcome says how an exchange ended.
type Outcome string

// The outcomes.
const (
	// OutcomeOK is a complete answer.
	OutcomeOK Outcome = "ok"
	// OutcomeClientError is an engine's refusal for which the client is to
	// blame.
	OutcomeClientError Outcome = "client_error"
	// OutcomeEngineError is an engine's failure, in its status or in its
	// stream.
	OutcomeEngineError Outcome = "engine_error"
	// OutcomeBroken is an answer that the engine broke off.
	OutcomeBroken Outcome = "broken"
	// OutcomeCancelled is a client that left before the end.
	OutcomeCancelled Outcome = "cancelled"
	// OutcomeRejected is a request that the gateway refused.
	OutcomeRejected Outcome = "rejected"
)

// Outcomes are all outcomes.
var Outcomes = []Outcome{
	OutcomeOK, OutcomeClientError, OutcomeEngineError, OutcomeBroken, OutcomeCancelled, OutcomeRejected,
}

// Result is what became of the request. Times are zero if they never came.
type Result struct {
	// Outcome is "" until it is known.
	Outcome Outcome
	// Status is what the client got.
	Status int
	// Sent is when the first attempt was handed to a replica, Headers when its
	// answer began, FirstToken when the first token came.
	Sent, Headers, FirstToken time.Time
	// Usage is the engine's own count, if UsageKnown.
	Usage      openai.Usage
	UsageKnown bool
	// Events counts the content events of a stream: an estimate of the
	// completion's tokens where the engine's count never came.
	Events int
}

// Open begins an exchange. route must not be nil.
func Open(rt *Runtime, r *http.Request, route *Route) *Exchange {
	return &Exchange{
		ID: NewID(), Start: rt.Now(), Route: route, Options: DefaultOptions,
		rt: rt, header: r.Header, holds: rt.Hold != nil && rt.Hold(),
	}
}

// Runtime returns what the exchange was opened with.
func (x *Exchange) Runtime() *Runtime { return x.rt }

// Endpoint returns where the current attempt goes; nil before a pick.
func (x *Exchange) Endpoint() *catalog.Endpoint {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.endpoint
}

// Last returns where the last attempt went, also after it failed; nil before
// the first.
func (x *Exchange) Last() *catalog.Endpoint {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.last
}

// Pool returns the pool of the last attempt.
func (x *Exchange) Pool() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.pool
}

// Attempts returns how many replicas were picked so far.
func (x *Exchange) Attempts() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.attempts
}

// Fail keeps the cause for which the exchange cannot go on, for whoever answers
// the client. Nil clears it.
func (x *Exchange) Fail(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.err = err
}

// Err returns the cause kept by [Exchange.Fail].
func (x *Exchange) Err() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.err
}

// Record changes the result under the exchange's lock.
func (x *Exchange) Record(change func(*Result)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.ended {
		change(&x.result)
	}
}

// Sending notes that the request is handed to a replica, and returns when.
func (x *Exchange) Sending() time.Time {
	now := x.rt.Now()
	x.Record(func(r *Result) {
		if r.Sent.IsZero() {
			r.Sent, x.sentAfter, x.loadedIn = now, x.queued(), x.loading
		}
	})
	return now
}

// Result returns what became of the request so far.
func (x *Exchange) Result() Result {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.result
}

// Finish keeps an outcome, unless one is kept already: the first to know is
// the closest to the cause.
func (x *Exchange) Finish(o Outcome) {
	x.Record(func(r *Result) {
		if r.Outcome == "" {
			r.Outcome = o
		}
	})
}

// End gives back all that the exchange holds and reports it, once, however it
// went; further calls do nothing.
func (x *Exchange) End() {
	x.mu.Lock()
	if x.ended {
		x.mu.Unlock()
		return
	}
	x.ended = true
	replica := x.slotReplica()
	x.slot.Release()
	x.lease.Release(x.output())
	x.rt.Budget.Give(x.held)
	x.held, x.body = 0, nil
	if replica != nil && x.result.Outcome == OutcomeOK {
		replica.Completed()
	}
	x.mu.Unlock()
	if x.rt.Ended != nil {
		x.rt.Ended(x)
	}
	if x.holds {
		x.rt.Release()
	}
}

// output returns how many tokens came, below 0 if the engine did not do the work: what
// it refuses or fails at says nothing of how long work takes. It needs mu.
func (x *Exchange) output() int64 {
	switch {
	case x.result.Outcome != OutcomeOK && x.result.Events == 0:
		return -1
	case x.result.UsageKnown:
		return x.result.Usage.Completion
	}
	return int64(x.result.Events)
}

func (x *Exchange) slotReplica() *fleet.Replica {
	if !x.slot.Held() || x.endpoint == nil {
		return nil
	}
	return x.endpoint.Replica
}

// DropBody gives the request's body back early: once an answer has begun, no
// attempt will need it again, and a stream may run for minutes.
func (x *Exchange) DropBody() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ended {
		return
	}
	x.rt.Budget.Give(x.held)
	x.held, x.body = 0, nil
}

// OtherModel stands for models that have no name of their own in metrics.
const OtherModel = "_other"

// Serving returns the model whose replicas serve the request: the one that was
// asked for, or a fallback of it. It is nil before [Exchange.Resolve].
func (x *Exchange) Serving() *catalog.Model {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.serving
}

// Fallback returns the name of the model that served the request in the place of
// the one that was asked for, or "".
func (x *Exchange) Fallback() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.serving == x.Model || x.last == nil {
		return ""
	}
	return x.serving.Name
}

// ModelName returns the model's logical name for metrics and logs, or
// [OtherModel] if it is not known: what a client calls a model must not become
// a label.
func (x *Exchange) ModelName() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.Model == nil {
		return OtherModel
	}
	return x.Model.Name
}

// Overhead returns the gateway's own time until the request was handed to its
// first replica, the waiting for the client's body, in the queue and for adapters left out.
func (x *Exchange) Overhead() time.Duration {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.result.Sent.IsZero() {
		return 0
	}
	return x.result.Sent.Sub(x.Start) - x.readTime - x.sentAfter - x.loadedIn
}
