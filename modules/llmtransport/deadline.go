package llmtransport

import (
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// coarse is how much later than the last deadline the next one must be to be
// worth setting.
const coarse = time.Second

// coarseDeadlines keeps Caddy from moving a stream's write deadline twice for
// each token, which costs about as much as all else that the gateway does with
// it: a second sooner or later means nothing to a limit of a minute. It returns what
// moves them, nil if that is left as it is.
func coarseDeadlines(r *http.Request) *caddyhttp.IdleTimeoutWriter {
	_, idle := caddyhttp.IdleTimeoutsFromContext(r.Context())
	// Over HTTP/2 it clears them in between, and has to.
	if idle == nil || idle.ClearBetweenWrites || idle.Deadline.Timeout < 10*coarse {
		return nil
	}
	idle.Ctrl = http.NewResponseController(&coarseWriter{ResponseWriter: idle.ResponseWriter, control: idle.Ctrl})
	return idle
}

// coarseWriter is where Caddy sets a stream's write deadlines. Only one
// goroutine writes a response.
type coarseWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	last    time.Time
}

// SetWriteDeadline implements what http.ResponseController asks for.
func (w *coarseWriter) SetWriteDeadline(t time.Time) error {
	if later := t.Sub(w.last); !t.IsZero() && !w.last.IsZero() && later >= 0 && later < coarse {
		return nil
	}
	if err := w.control.SetWriteDeadline(t); err != nil {
		return err
	}
	w.last = t
	return nil
}
