package llmapi

import (
	"io"
	"net/http"
	"strings"
)

// linger makes Go's HTTP/1 server close the connection after the answer, and
// gently: it goes on reading for a moment, without which the client, who may
// still be sending, would get a reset in the place of an answer to a body that
// was not read. Go does so by itself only for its own kinds of body, of which
// Caddy's is none.
//
// With the header that says so it also keeps Go from reading what is left of a
// small body before it answers: a client that waits for the answer first would
// wait for ever, and nothing is read for a stranger.
func linger(w http.ResponseWriter) {
	for {
		outer, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			break
		}
		w = outer.Unwrap()
	}
	// The one way to ask for it: a body that turns out to be over its limit.
	over := http.MaxBytesReader(w, io.NopCloser(strings.NewReader("x")), 0)
	_, _ = over.Read(make([]byte, 1))
}
