package llmtransport

import (
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// coarse is how much later than the last deadline the next one must be to be
// worth setting.
const coarse = time.Second

// events writes an event stream to the client, and flushes what it has written.
type events struct {
	through http.ResponseWriter
	// beneath is the same without what moves the write deadline with each write and
	// flush, nil if there is more in between. It is enough until a deadline is due
	// to be moved.
	beneath http.ResponseWriter
	moved   time.Time
}

// newEvents returns a writer for the answer to r.
func newEvents(w http.ResponseWriter, r *http.Request) *events {
	e := &events{through: w}
	idle := coarseDeadlines(r)
	if idle != nil && w == http.ResponseWriter(idle) && idle.Deadline.MinRate == 0 {
		e.beneath = idle.ResponseWriter
	}
	return e
}

// Write implements io.Writer.
func (e *events) Write(p []byte) (int, error) {
	w := e.through
	if e.beneath != nil {
		if now := time.Now(); now.Sub(e.moved) < coarse {
			w = e.beneath
		} else {
			e.moved = now
		}
	}
	n, err := w.Write(p)
	if err == nil {
		_ = http.NewResponseController(w).Flush() // the next write will tell what is wrong
	}
	return n, err
}

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
