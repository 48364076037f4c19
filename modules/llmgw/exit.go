package llmgw

import (
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
)

// defaultGrace is how long requests may go on when the process is stopped, unless
// the option `grace_period` says otherwise.
const defaultGrace = 30 * time.Second

// boundExit sees to it that the request's server ends when the process is stopped:
// without the option `grace_period` Caddy waits for as long as any stream runs. To
// set that option here would be wrong: a reload would then cut HTTP/3 streams.
func (a *App) boundExit(r *http.Request) {
	if !a.graceless.Load() {
		return
	}
	server, ok := r.Context().Value(http.ServerContextKey).(*http.Server)
	if !ok { // HTTP/3
		return
	}
	if _, seen := a.servers.Load(server); seen {
		return
	}
	if _, seen := a.servers.LoadOrStore(server, nil); !seen {
		closeAfter(server, defaultGrace, caddy.Exiting)
	}
}

// closeAfter closes the server's connections some time after it was told to shut
// down, if the process ends.
func closeAfter(server *http.Server, grace time.Duration, exiting func() bool) {
	server.RegisterOnShutdown(func() {
		if exiting() {
			time.AfterFunc(grace, func() { server.Close() })
		}
	})
}
