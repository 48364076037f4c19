package llmapi

import (
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/llmgw/llmgw/modules/internal/exchange"
	"github.com/llmgw/llmgw/modules/llmgw"
)

// What bounds a client's text and a cause in the log.
const (
	maxLogged = 128
	maxError  = 512
)

// logFields adds what the exchange knows to the request's line in the access
// log, if there is one.
func logFields(x *exchange.Exchange, r *http.Request) {
	server, ok := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if !ok || server.Logs == nil {
		return
	}
	extra, ok := r.Context().Value(caddyhttp.ExtraLogFieldsCtxKey).(*caddyhttp.ExtraLogFields)
	if !ok {
		return
	}
	res := x.Result()
	extra.Add(zap.String("request_id", x.ID))
	if x.ClientID != "" {
		extra.Add(zap.String("client_request_id", x.ClientID))
	}
	extra.Add(zap.String("model", x.ModelName()))
	if x.Model == nil && x.Requested != "" {
		extra.Add(zap.String("requested_model", x.Requested[:min(len(x.Requested), maxLogged)]))
	}
	if x.Key != nil {
		extra.Add(zap.String("key", x.Key.Name))
	}
	if e := x.Last(); e != nil {
		extra.Add(zap.String("served_model", e.Served(x.Serving())))
		extra.Add(zap.String("replica", e.Replica.ID))
		extra.Add(zap.String("pool", e.Pool))
		extra.Add(zap.Int("attempts", x.Attempts()))
	}
	if other := x.Fallback(); other != "" {
		extra.Add(zap.String("fallback", other))
	}
	if band := x.Band(); band != "" {
		extra.Add(zap.String("band", band))
	}
	if d := x.Queued(); d >= time.Millisecond { // else it was only asked for
		extra.Add(zap.Float64("queue_ms", float64(d)/float64(time.Millisecond)))
	}
	if t := llmgw.TTFT(x, res); t > 0 {
		extra.Add(zap.Float64("ttft_ms", float64(t)/float64(time.Millisecond)))
	}
	if res.UsageKnown {
		extra.Add(zap.Int64("prompt_tokens", res.Usage.Prompt))
		extra.Add(zap.Int64("cached_tokens", res.Usage.Cached))
		extra.Add(zap.Int64("completion_tokens", res.Usage.Completion))
	} else if res.Events > 0 {
		extra.Add(zap.Int64("completion_tokens_estimate", int64(res.Events)))
	}
	if err := x.Err(); err != nil {
		extra.Add(zap.String("reason", exchange.Label(err)))
		if res.Status >= http.StatusInternalServerError || res.Outcome == exchange.OutcomeBroken {
			text := err.Error()
			extra.Add(zap.String("error", text[:min(len(text), maxError)]))
		}
	}
	extra.Add(zap.String("outcome", string(res.Outcome)))
}
