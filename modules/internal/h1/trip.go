package h1

import (
	"context"
	"io"
	"net/http"
	"slices"
	"sync/atomic"
	"time"
)

// trip is one request on its connection, and the body of its answer. As with
// every answer's body, Close may be called while Read waits.
type trip struct {
	t      *Transport
	c      *conn
	ctx    context.Context
	stop   func() bool // ends the watch over ctx, false if that has closed the connection
	abort  *Abort
	upload *upload   // nil if the request was sent whole
	keep   bool      // neither side asked to close the connection
	src    io.Reader // the body, decoded
	err    error     // what Read ended with; only Read uses it
	state  atomic.Int32
}

const (
	stateOpen int32 = iota
	stateEnded
	stateClosed
)

// answer makes x the body of res, or ends x if res has none.
func (x *trip) answer(res *http.Response) {
	x.keep = x.keep && !res.Close
	if res.StatusCode >= 300 && x.upload != nil && !x.upload.whole() {
		// What was refused need not be sent, and a server that waits for the
		// rest need not wait.
		x.keep = false
		x.upload.abort()
	}
	if res.Body == http.NoBody {
		x.release(true)
		return
	}
	x.src = res.Body
	if slices.Equal(res.TransferEncoding, chunkedCoding) {
		x.src = &chunked{br: x.c.br, res: res}
	}
	res.Body = x
}

var chunkedCoding = []string{"chunked"}

// fail ends x without an answer.
func (x *trip) fail(sent bool, writeErr, readErr error) *Error {
	e := &Error{Op: OpRead, Addr: x.c.key, Reused: x.c.reused, Sent: sent, Answered: x.c.answered, err: readErr}
	bodyErr := x.upload.failure()
	switch {
	case ended(x.ctx, x.abort) != nil:
		e.err = ended(x.ctx, x.abort)
	case bodyErr != nil:
		e.Op, e.err = OpBody, bodyErr
	default:
		if writeErr != nil {
			e.Op, e.err = OpWrite, writeErr
		}
		e.Stale = e.Reused && !e.Answered && !isTimeout(readErr) && time.Since(x.c.since) < staleWithin
	}
	x.release(false)
	return e
}

// Read implements io.Reader. After a body that ended early or was cut it fails
// with io.ErrUnexpectedEOF or the network's error, or with the context's or the
// Abort's if that has ended it.
func (x *trip) Read(p []byte) (int, error) {
	if x.state.Load() == stateClosed {
		return 0, http.ErrBodyReadAfterClose
	}
	if x.err != nil {
		return 0, x.err
	}
	n, err := x.src.Read(p)
	if err == nil {
		return n, nil
	}
	switch {
	case !x.state.CompareAndSwap(stateOpen, stateEnded):
		err = http.ErrBodyReadAfterClose
	case err == io.EOF: //nolint:errorlint // a wrapped one is no clean end
		x.release(true)
	default:
		x.release(false)
		if ended := ended(x.ctx, x.abort); ended != nil {
			err = ended
		}
	}
	x.err = err
	return n, err
}

// Close implements io.Closer. Before the end of the body it closes the
// connection, so that the server notices at once.
func (x *trip) Close() error {
	if x.state.CompareAndSwap(stateOpen, stateClosed) {
		x.release(false)
	}
	return nil
}

// release ends the use of the connection, which goes back to the pool only if
// both directions are at the end of a message, and nothing can close it.
func (x *trip) release(clean bool) {
	if x.stop() && x.abort.release() && clean && x.keep && x.upload.whole() && x.c.br.Buffered() == 0 {
		x.t.put(x.c)
		return
	}
	x.c.shut()
}
