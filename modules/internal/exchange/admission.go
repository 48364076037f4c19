package exchange

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/llmgw/llmgw/modules/internal/admit"
	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/internal/openai"
	"github.com/llmgw/llmgw/modules/schedule"
)

// Class is who a request counts as when it has to wait.
type Class struct {
	// Band is its band; one that does not exist, or none, is the default one.
	Band string
	// Tenant is who takes turns with others in the band.
	Tenant string
	// Weight is how much the tenant gets beside others, 1 is normal, 0 is 1.
	Weight float64
}

// Admit waits until the request may go to a replica of its model. While that has
// none that may be used, a fallback's are waited for, if there is one. An error says
// why it may not go.
func (x *Exchange) Admit(ctx context.Context, c Class) error {
	x.mu.Lock()
	held := x.lease != nil
	if !held {
		x.class = c
	}
	x.mu.Unlock()
	if held || x.rt.Gate == nil || x.Model == nil || x.Route.Work == WorkNone { // or a handler before has asked
		return nil
	}
	for {
		m, at := x.Serving(), x.rt.Now()
		lease, err := x.rt.Gate.Acquire(ctx, x.admission(m))
		if err == nil {
			return x.keepLease(lease)
		}
		refused, ok := errors.AsType[*admit.RejectedError](err)
		if !ok {
			return err // the client was gone before
		}
		switch another := x.refused(refused, x.rt.Now().Sub(at)); {
		case refused.Reason == admit.ReasonGone:
			return err
		case refused.Reason != admit.ReasonNoReplica:
			err = rejection(m, refused)
			x.Fail(err)
			return err
		case !another:
			return nil // the pick says what is wrong with each replica
		}
	}
}

// maxJoined is how often a request that is to have a replica for itself waits again if others were
// there, of another gateway or where nobody knows how many the replica runs at once.
const maxJoined = 3

// waitAgain gives the lease back and queues again, if all replicas of its model have
// refused the request as full, or take no more; then it returns why it may not go now. Otherwise,
// and without a lease, it returns false.
func (x *Exchange) waitAgain(ctx context.Context) (again bool, refused error) {
	x.mu.Lock()
	if x.ended || !x.full() {
		x.mu.Unlock()
		return false, nil
	}
	lease := x.lease
	x.waited, x.lease = x.rt.Now().Sub(lease.Since()), nil
	x.err, x.failed, x.tried, x.turnedAway, x.tries = nil, false, nil, nil, 0
	x.serving, x.passed = x.Model, 0
	x.mu.Unlock()
	lease.Release(-1)
	return true, x.Admit(ctx, x.class)
}

// full reports whether there is a lease that is of no use: all replicas of its model that
// may be used have refused the request as full, which they may not be any more, or take no
// more than they have. It needs mu.
func (x *Exchange) full() bool {
	if x.lease == nil || x.joined >= maxJoined {
		return false
	}
	full, now, n := false, x.rt.Now(), x.sequences()
	for _, e := range x.lease.Model().Endpoints {
		switch s := e.Replica.State(); {
		case !e.Replica.TakesMany(now, n):
		case s == schedule.Full, s == schedule.Ready && slices.Contains(x.turnedAway, e.Replica):
			full = true
		case s == schedule.Ready && !slices.Contains(x.tried, e.Replica):
			return false // to the gate it has room, whatever the request could not go there for
		}
	}
	return full
}

// refused notes what a refusal after so long tells, and returns whether another model
// serves now, since this one has no replica.
func (x *Exchange) refused(r *admit.RejectedError, waited time.Duration) (another bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.waited += waited
	x.band = r.Band
	return r.Reason == admit.ReasonNoReplica && x.fallBack()
}

// admission is what the gate knows of the request.
func (x *Exchange) admission(m *catalog.Model) *admit.Request {
	x.mu.Lock()
	defer x.mu.Unlock()
	r := Admission(m, &x.Fields, x.body, x.Route.Work)
	r.Band, r.Tenant, r.Weight, r.Deadline = x.class.Band, x.class.Tenant, x.class.Weight, x.Wishes.Deadline
	r.Fallbacks, r.Waited, r.Alone = x.fallbacks(), x.waited, x.alone
	return r
}

// sequences returns how many an engine makes of the request.
func (x *Exchange) sequences() int64 {
	return x.Fields.Sequences(x.Fields.Prompts(x.Route.Work == WorkGenerate))
}

// Admission is what the gate is told of a request for a model whose body was scanned,
// less whose it is.
func Admission(m *catalog.Model, f *openai.Fields, body []byte, work Work) *admit.Request {
	prompts := f.Prompts(work == WorkGenerate)
	r := &admit.Request{
		Model: m, Bytes: int64(len(body)), Sequences: f.Sequences(prompts), Prompt: int64(PromptTokens(f)),
	}
	if work == WorkGenerate {
		r.Holds, r.Output = true, prompts*int64(OutputTokens(f))
		if prompts == 1 { // else each is a sequence of its own
			r.Least = int64(f.PromptBytes/sparse) + f.MaxTokens
		}
	}
	return r
}

// sparse is how many bytes of JSON make a token at most, in a prompt of any length:
// a request that is refused for its size must be too large, and text with many
// escapes or blanks has far fewer tokens than [PromptTokens] thinks.
const sparse = 12

// keepLease makes the lease the exchange's, which may have ended meanwhile.
func (x *Exchange) keepLease(l *admit.Lease) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ended {
		l.Release(-1)
		return errEnded
	}
	x.lease, x.band = l, l.Band()
	// While it waited its model may have got other replicas, with another config or
	// since engines were asked what they serve: it was let go to these.
	if m := l.Model(); m != x.serving {
		if x.serving == x.Model {
			x.Model, x.passed = m, 0 // its fallbacks may be others
		}
		x.serving = m
	}
	return nil
}

// Band returns the name of the band that the request counted as, "" if it never came
// to that.
func (x *Exchange) Band() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.band
}

// Granted reports whether the request was let through, and has not had to wait again since
// in vain.
func (x *Exchange) Granted() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.lease != nil
}

// Queued returns how long the request has waited for its turn.
func (x *Exchange) Queued() time.Duration {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.queued()
}

func (x *Exchange) queued() time.Duration {
	if x.lease == nil {
		return x.waited
	}
	return x.lease.Waited()
}

// rejection gives what the gate said its class, and tells the client what to do.
func rejection(m *catalog.Model, r *admit.RejectedError) error {
	var err error
	switch r.Reason {
	case admit.ReasonFull:
		if r.GaveWay {
			err = Fail(ErrQueueFull, "the queue of the model `%s` is full, and the request had to make room in the band %s for one of a tenant with fewer", m.Name, r.Band)
			break
		}
		err = Fail(ErrQueueFull, "too many requests wait for the model `%s`, or too large ones, for one more of the band %s", m.Name, r.Band)
	case admit.ReasonDisplaced:
		err = Fail(ErrDisplaced, "the request had to make room for one of a higher band than %s", r.Band)
	case admit.ReasonDeadline:
		err = Fail(ErrDeadline, "the request would wait longer for the model `%s` than it may", m.Name)
	case admit.ReasonTooLarge:
		return Fail(ErrTokens, "the request needs more tokens than any replica of the model `%s` can hold: %d", m.Name, r.Room)
	default:
		err = Fail(ErrQueueTimeout, "the request has waited for the model `%s` as long as it may", m.Name)
	}
	return retryIn(err, r.RetryAfter)
}
