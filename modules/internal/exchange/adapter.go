package exchange

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/internal/openai"
	"github.com/llmgw/llmgw/modules/schedule"
)

// adapter returns the name that an endpoint's engine lists a model by, if it is a LoRA adapter there, and
// whether it would have to be loaded first; that it is being loaded is as good as that it is there.
func adapter(m *catalog.Model, e *catalog.Endpoint) (name string, absent, ok bool) {
	if e.Adapter != nil {
		a := e.Adapter.Adapter
		return a.Name, !e.Replica.HasAdapter(a) && !e.Replica.Loading(a), true
	}
	a, ok := e.Listed(m)
	return a.Name, false, ok
}

// fit reports whether a replica may get a request for what an endpoint serves, as far as that goes:
// it is ready, and was not found unable to load the adapter a moment ago.
func fit(e *catalog.Endpoint) bool {
	return e.Replica.State() == schedule.Ready &&
		(e.Adapter == nil || e.Replica.HasAdapter(e.Adapter.Adapter) || e.Replica.MayLoad(e.Adapter.Adapter))
}

// LoadAdapter has the current replica load the adapter that the request is for, if it lacks it. It
// takes no longer than the request may in all.
func (x *Exchange) LoadAdapter(ctx context.Context) error {
	e, m := x.Endpoint(), x.Serving()
	if e == nil || e.Adapter == nil {
		return nil
	}
	x.mu.Lock()
	x.listing = e.Replica.Listing()
	x.mu.Unlock()
	a := e.Adapter.Adapter
	if e.Replica.HasAdapter(a) {
		return nil
	}
	begun := x.rt.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, m.Reliability.Total-begun.Sub(x.Start), errTotal)
	defer cancel()
	err := e.Replica.LoadAdapter(ctx, a, func() func(context.Context) error {
		held := x.rt.Hold == nil || x.rt.Hold() // the load may outlive the request
		return func(ctx context.Context) error {
			if !held {
				return errEnded
			}
			if x.rt.Hold != nil {
				defer x.rt.Release()
			}
			return x.rt.LoadAdapter(ctx, m, e)
		}
	})
	x.mu.Lock()
	defer x.mu.Unlock()
	x.loading += x.rt.Now().Sub(begun)
	x.listing = e.Replica.Listing()
	return err
}

// NotLoaded notes that the current replica could not load the adapter. It returns whether the
// request may go to another one, which takes nothing from the budget: many may have waited for the
// one load, and none was sent.
func (x *Exchange) NotLoaded(err error) (retry bool) {
	x.Fail(FailWith(ErrReplica, err, "the replica could not load the model `%s`", clip(x.Requested, 128)))
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.elsewhere() || x.fallback() != nil
}

// sglangLost is in the answer by which SGLang says that it does not know an adapter.
const sglangLost = "LoRA adapters are not loaded"

// adapterLost notes an answer that says that the engine does not have the adapter which it has listed: it
// restarted, or somebody unloaded it. It returns whether that is so; then the next pick is the same
// replica, once for each, to load it again. That takes nothing from the budget, and is no further try.
func (x *Exchange) adapterLost(e *openai.Error) bool {
	at := x.Endpoint()
	unknown := e.Code == openai.CodeModelNotFound || e.Status == http.StatusBadRequest && strings.Contains(e.Message, sglangLost)
	if !unknown || at == nil || at.Adapter == nil {
		return false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if slices.Contains(x.reloaded, at.Replica) {
		return false // it was loaded for this very request
	}
	at.Replica.LostAdapter(x.listing, at.Adapter.Name) // unless another has done so, and it is back
	x.reloaded, x.reloads = append(x.reloaded, at.Replica), at.Replica
	x.tries--
	return true
}
