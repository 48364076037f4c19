// Package llmadmin is the gateway's part of Caddy's admin API: what there is,
// why a request would go where, and what an operator can do about it.
package llmadmin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"

	"github.com/caddyserver/caddy/v2"

	"github.com/llmgw/llmgw/modules/internal/openai"
	"github.com/llmgw/llmgw/modules/llmgw"
)

func init() {
	caddy.RegisterModule(new(API))
}

// API adds these endpoints to the admin API:
//
//	GET  /llmgw/replicas          all replicas: what is known of each
//	POST /llmgw/replicas/drain    {"replica": ID}: no new work for it
//	POST /llmgw/replicas/undrain  {"replica": ID}
//	GET  /llmgw/queue             what waits, by model and band
//	POST /llmgw/explain           a request body, or {"model": NAME}: every
//	                              candidate, its filters and scores, the pick
//
// It holds no app: after a failed reload Caddy goes on serving the failed
// config's router, and the app must be the one that really runs.
type API struct{}

// CaddyModule returns the Caddy module information.
func (*API) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "admin.api.llmgw",
		New: func() caddy.Module { return new(API) },
	}
}

// Routes implements caddy.AdminRouter.
func (a *API) Routes() []caddy.AdminRoute {
	return []caddy.AdminRoute{
		{Pattern: "/llmgw/replicas", Handler: handler(http.MethodGet, a.replicas)},
		{Pattern: "/llmgw/replicas/drain", Handler: handler(http.MethodPost, a.drain(true))},
		{Pattern: "/llmgw/replicas/undrain", Handler: handler(http.MethodPost, a.drain(false))},
		{Pattern: "/llmgw/queue", Handler: handler(http.MethodGet, a.queue)},
		{Pattern: "/llmgw/explain", Handler: handler(http.MethodPost, a.explain)},
	}
}

// maxBody bounds what an operator sends.
const maxBody = 32 << 20

// handler checks the method and, where something is sent, the media type:
// browsers send JSON across origins only after they asked.
func handler(method string, do func(app *llmgw.App, r *http.Request) (any, error)) caddy.AdminHandler {
	return caddy.AdminHandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
		if r.Method != method {
			w.Header().Set("Allow", method)
			return fail(http.StatusMethodNotAllowed, "%s takes %s", r.URL.Path, method)
		}
		if method == http.MethodPost {
			if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
				return fail(http.StatusUnsupportedMediaType, "%s takes Content-Type: application/json", r.URL.Path)
			}
		}
		app := llmgw.Current()
		if app == nil {
			return fail(http.StatusServiceUnavailable, "the running config has no llmgw app, or it is not up yet")
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		v, err := do(app, r)
		if err != nil {
			return err
		}
		w.Header().Set("Content-Type", "application/json")
		return json.NewEncoder(w).Encode(v)
	})
}

func fail(status int, format string, args ...any) error {
	return caddy.APIError{HTTPStatus: status, Err: fmt.Errorf(format, args...)}
}

func (*API) replicas(app *llmgw.App, _ *http.Request) (any, error) { return app.ListReplicas(), nil }

func (*API) queue(app *llmgw.App, _ *http.Request) (any, error) { return app.ListQueue(), nil }

func (*API) drain(on bool) func(*llmgw.App, *http.Request) (any, error) {
	return func(app *llmgw.App, r *http.Request) (any, error) {
		var body struct {
			Replica string `json:"replica"`
		}
		dec := json.NewDecoder(r.Body)
		dec.DisallowUnknownFields()
		if err := dec.Decode(&body); err != nil || body.Replica == "" {
			return nil, fail(http.StatusBadRequest, `want {"replica": "ID"}; GET /llmgw/replicas lists the ids`)
		}
		v, ok := app.Drain(body.Replica, on)
		if !ok {
			return nil, fail(http.StatusNotFound, "there is no replica %q; GET /llmgw/replicas lists them", body.Replica)
		}
		return v, nil
	}
}

func (*API) explain(app *llmgw.App, r *http.Request) (any, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, fail(http.StatusRequestEntityTooLarge, "the body is larger than %d bytes", maxBody)
	}
	fields, err := openai.Scan(body)
	if err != nil {
		return nil, fail(http.StatusBadRequest, "want a request body, or {\"model\": \"NAME\"}: %w", err)
	}
	q := r.URL.Query()
	question := llmgw.Question{Band: q.Get("band")}
	question.Body, question.Fields = body, fields
	question.Profile, question.Session, question.Tenant = q.Get("profile"), q.Get("session"), q.Get("tenant")
	v, err := app.Explain(r.Context(), &question)
	if errors.Is(err, llmgw.ErrNotFound) {
		return nil, fail(http.StatusNotFound, "%w", err)
	}
	return v, err
}

// Interface guard.
var _ caddy.AdminRouter = (*API)(nil)
