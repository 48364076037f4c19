package exchange

import (
	"context"
	"errors"
	"net"
	"net/http"

	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/internal/openai"
)

// adapter returns the name that a model has at an endpoint, if it is a LoRA adapter there, and whether
// it would have to be loaded first.
func adapter(m *catalog.Model, e *catalog.Endpoint) (name string, absent, ok bool) {
	name = e.Served(m)
	listed := e.Replica.HasAdapter(name)
	return name, e.LoadFrom != "" && !listed, listed || e.LoadFrom != ""
}

// LoadAdapter has the current replica load the adapter that the request is for, if it lacks it. If
// that fails it returns why, and whether the request may go to another replica.
func (x *Exchange) LoadAdapter(ctx context.Context) (retry bool, err error) {
	e, m := x.Endpoint(), x.Serving()
	if e == nil || e.LoadFrom == "" {
		return false, nil
	}
	name := e.Served(m)
	if e.Replica.HasAdapter(name) {
		return false, nil
	}
	err = e.Replica.LoadAdapter(ctx, name, func() ([]string, error) { return x.rt.LoadAdapter(m, e) })
	switch {
	case err == nil:
		return false, nil
	case ctx.Err() != nil:
		return false, context.Canceled
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		x.Unreachable(err)
	}
	x.Fail(FailWith(ErrReplica, err, "the replica could not load the model `%s`", clip(x.Requested, 128)))
	return x.MayRetry(), err
}

// adapterLost notes an answer that says that the engine does not have the adapter it has listed: it
// restarted, or somebody unloaded it. It returns whether that is so; then the same replica may load
// it again.
func (x *Exchange) adapterLost(e *openai.Error) bool {
	at := x.Endpoint()
	if e.Status != http.StatusNotFound || at == nil || at.LoadFrom == "" {
		return false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.reloaded {
		return false // it was loaded for this very request
	}
	x.reloaded, x.reloading = true, true
	at.Replica.LostAdapter(at.Served(x.serving))
	return true
}
