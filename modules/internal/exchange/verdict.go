package exchange

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/llmgw/llmgw/modules/internal/openai"
)

// ConnectFailed notes that the current replica could not be reached, so that
// nothing was sent, and whether that is its fault. It returns whether the request
// may go to another one.
func (x *Exchange) ConnectFailed(err error, blame bool) (retry bool) {
	if blame {
		x.Unreachable(err)
	}
	x.Fail(FailWith(ErrReplica, err, "the replica could not be reached"))
	return x.MayRetry()
}

// Unreachable notes that no connection could be made to the current replica.
func (x *Exchange) Unreachable(err error) {
	if e := x.Endpoint(); e != nil {
		e.Replica.Health.Dialled(err)
		e.Replica.Health.ConnectFailed("connect: " + err.Error())
	}
}

// BrokeOff notes that no answer came over the connection to the current
// replica: not one byte of it, if silent, else none that makes sense. It
// returns whether the request may go to another one.
func (x *Exchange) BrokeOff(err error, silent bool) (retry bool) {
	if !silent {
		x.ReplicaFailed("no valid answer")
		x.Fail(FailWith(ErrReplica, err, "the replica gave no valid answer"))
		return false
	}
	x.ReplicaFailed("connection broke before the answer")
	x.Fail(FailWith(ErrReplica, err, "the replica closed the connection before it answered"))
	return x.MayResend()
}

// Stale notes that the kept connection to the current replica was closed, most
// likely before the request was sent into it, which is no failure. It returns
// whether the request may go to another replica, which takes nothing from the
// budget: there are no more such requests than there were connections.
func (x *Exchange) Stale(err error) (retry bool) {
	x.mu.Lock()
	allowed := x.resends() && x.elsewhere()
	x.resent = x.resent || allowed
	x.mu.Unlock()
	if !allowed {
		return x.BrokeOff(err, true)
	}
	x.Fail(FailWith(ErrReplica, err, "the replica closed the connection before it answered"))
	return true
}

// GaveUp notes that a [Watch] ended the attempt. It returns whether the request
// may go to another replica: not where the current one took too long, since it
// may be running there.
func (x *Exchange) GaveUp(cause error) (retry bool) {
	switch {
	case IsTotal(cause):
	case errors.Is(cause, errFirstToken) && !x.Fields.Stream && !x.quiet():
		// Only a stream says whether it has begun: this one may just be long.
	default:
		x.ReplicaFailed(cause.Error())
	}
	x.Fail(cause)
	return errors.Is(cause, errGone) && x.MayResend()
}

// quiet reports whether the current replica has said nothing to any request for
// as long as a first token may take.
func (x *Exchange) quiet() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.slot.Quiet(x.serving.Reliability.FirstToken)
}

// Refusal notes an answer that is an error. It returns whether the request may
// go to another replica; the error is kept for the case that there is none. Of one
// that another time may do better with it says when.
func (x *Exchange) Refusal(e *openai.Error) (retry bool) {
	switch {
	case e.Status == http.StatusServiceUnavailable, e.Status == http.StatusTooManyRequests, nothingStarted(e):
		x.Refused(answered(e), e.RetryAfter, !nothingStarted(e))
		e.RetryAfter = max(e.RetryAfter, leastRetry) // whoever answers the client
		if x.MayRetry() || x.mayWait() {
			x.Fail(e)
			return true
		}
	case x.adapterLost(e):
		x.Fail(FailWith(ErrReplica, e, "the replica has lost the model `%s`", clip(x.Requested, 128)))
		return true
	case engineDied(e):
		x.ReplicaFailed("the engine died")
		if x.MayResend() {
			x.Fail(e)
			return true
		}
	case e.Status >= http.StatusInternalServerError && e.Status != http.StatusNotImplemented:
		x.ReplicaFailed(answered(e))
	default:
		x.Succeeded() // it is the client's own fault
	}
	return false
}

// leastRetry is what a client is told to wait whom an engine has refused without
// a word of how long.
const leastRetry = time.Second

// answered says what the replica did, for operators.
func answered(e *openai.Error) string {
	return fmt.Sprintf("answered %d %s", e.Status, http.StatusText(e.Status))
}

// engineDied knows the answers by which an engine says that the process died
// which worked on the request: vLLM's front sends them for what it had when its
// core ends, by a crash or by SIGTERM. That is a connection that broke, in words.
func engineDied(e *openai.Error) bool {
	return e.Status == http.StatusInternalServerError && strings.Contains(e.Message, "EngineCore encountered an issue")
}

// nothingStarted knows the answers, other than 503 and 429, by which an engine
// says that it did not begin the request: vLLM answers 500 while it shuts down
// and lets what it has finish.
func nothingStarted(e *openai.Error) bool {
	return e.Status == http.StatusInternalServerError && strings.Contains(e.Message, "cannot schedule new futures after shutdown")
}
