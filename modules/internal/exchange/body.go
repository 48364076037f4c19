package exchange

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/llmgw/llmgw/modules/internal/openai"
)

// What is set aside for a body before more of it than that has come: a client
// that only announces a large body must not hold memory. One that does not say
// how large it is (chunked) begins small.
const (
	firstBuffer  = 64 << 10
	firstUnknown = 4 << 10
)

// Read reads and scans the request's body, once; further calls return what the
// first one did. It takes r's body away, since the exchange sends its own
// bytes from here on. Of a client that has shown no right to be served it reads
// nothing.
func (x *Exchange) Read(r *http.Request) error {
	if x.read {
		return x.readErr
	}
	x.read = true
	x.readErr = x.Admitted()
	if x.readErr == nil {
		x.readErr = x.readOnce(r)
	}
	if x.readErr != nil {
		x.Fail(x.readErr)
	}
	return x.readErr
}

// Admitted fails with [ErrDenied] unless the client has a key or needs none. It
// takes away what the client asked for and may not.
func (x *Exchange) Admitted() error {
	if x.Key == nil && !x.Anonymous {
		return Fail(ErrDenied, "no API key was given: send one as `Authorization: Bearer KEY`"+
			" (without any key configured, llmgw serves loopback clients only, unless `llm` says `open`)")
	}
	all := x.Options.DebugHeaders
	if x.Key != nil {
		all = x.Key.Debug
	}
	if !all {
		x.Wishes.Replica = ""
	}
	if name := x.Wishes.Profile; name != "" {
		if !all && (x.Key == nil || !slices.Contains(x.Key.Profiles, name)) {
			x.Wishes.Profile = ""
		} else if x.rt.Profiles[name] == nil {
			return Fail(ErrRequest, "there is no routing profile %q", clip(name, 64))
		}
	}
	return nil
}

func (x *Exchange) readOnce(r *http.Request) error {
	if x.Route.Kind == KindUpgrade {
		return x.readQuery(r)
	}
	if e := r.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return Fail(ErrRequest, "Content-Encoding %q is not supported: send the body as it is", clip(e, 32))
	}
	begin := x.rt.Now()
	body, err := x.readBody(r)
	if err != nil {
		return err
	}
	if !x.keep(body, x.rt.Now().Sub(begin)) {
		return errEnded
	}
	r.Body, r.ContentLength = http.NoBody, 0
	if x.Route.Kind == KindForm {
		x.Fields, err = openai.ScanMultipart(body, r.Header.Get("Content-Type"))
	} else {
		x.Fields, err = openai.Scan(body)
	}
	if err != nil {
		return err
	}
	x.Requested = x.Fields.Model
	x.injects = x.Options.InjectUsage && x.Route.Usage && x.Fields.CanInjectUsage(body)
	return nil
}

// readQuery takes the model of a request without a body.
func (x *Exchange) readQuery(r *http.Request) error {
	models := r.URL.Query()["model"]
	switch {
	case len(models) == 0 || models[0] == "":
		return Fail(ErrRequest, "you must provide a model in the query: ?model=NAME")
	case len(models) > 1:
		return Fail(ErrRequest, "the query names more than one model")
	}
	x.Requested = models[0]
	return nil
}

// readBody reads the body into one slice, which is held against the budget and
// doubles as the body comes. So it is at most twice what has come, and exactly
// that in the end; while it moves to a larger one, both are held.
func (x *Exchange) readBody(r *http.Request) ([]byte, error) {
	limit, length := x.Options.BodyLimit, r.ContentLength
	if length > limit {
		return nil, x.tooLarge()
	}
	if r.Body == nil || length == 0 {
		return nil, nil
	}
	size := int64(firstUnknown)
	if length > 0 {
		size = min(firstBuffer, length)
	}
	buf, err := x.grow(nil, size)
	for err == nil {
		var n int
		n, err = r.Body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		have := int64(len(buf))
		switch {
		case have == length, errors.Is(err, io.EOF) && length < 0:
			if have > limit {
				return nil, x.tooLarge()
			}
			return x.grow(buf, have)
		case err != nil:
			return nil, x.readError(r, err)
		case have > limit:
			return nil, x.tooLarge()
		case len(buf) == cap(buf):
			size := 2 * have
			if length > 0 {
				size = min(size, length)
			}
			if size > limit {
				size = limit + 1 // one byte above tells a body that is over it
			}
			buf, err = x.grow(buf, size)
		}
	}
	return nil, err
}

// grow moves buf to a slice of the given capacity, unless it has that, and
// holds it against the budget.
func (x *Exchange) grow(buf []byte, size int64) ([]byte, error) {
	if int64(cap(buf)) == size {
		return buf, nil
	}
	if err := x.hold(size); err != nil {
		return nil, err
	}
	grown := append(make([]byte, 0, size), buf...)
	x.letGo(int64(cap(buf)))
	return grown, nil
}

// errEnded is what a request meets whose exchange has ended under it: its
// client is gone.
var errEnded = fmt.Errorf("%w: the exchange has ended", context.Canceled)

func (x *Exchange) hold(n int64) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ended {
		return errEnded
	}
	if !x.rt.Budget.Take(n) {
		return Fail(ErrBusy, "the gateway holds as many request bodies as it may: try again in a moment")
	}
	x.held += n
	return nil
}

func (x *Exchange) letGo(n int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ended {
		return // End gave all of it back
	}
	x.rt.Budget.Give(n)
	x.held -= n
}

// keep stores the body, unless the exchange has ended meanwhile.
func (x *Exchange) keep(body []byte, took time.Duration) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.ended {
		x.body, x.readTime = body, took
	}
	return !x.ended
}

func (x *Exchange) tooLarge() error {
	return Fail(ErrTooLarge, "the request body is larger than the limit of %s", sizeText(x.Options.BodyLimit))
}

func (x *Exchange) readError(r *http.Request, err error) error {
	if r.Context().Err() != nil {
		return r.Context().Err()
	}
	if tooBig, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return Fail(ErrTooLarge, "the request body is larger than the limit of %s", sizeText(tooBig.Limit))
	}
	return Fail(ErrRequest, "the request body could not be read: it ended early or came too slowly")
}

// sizeText writes a number of bytes with the largest binary unit that divides
// it.
func sizeText(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB"}
	i := 0
	for n >= 1024 && n%1024 == 0 && i < len(units)-1 {
		n /= 1024
		i++
	}
	return strconv.FormatInt(n, 10) + " " + units[i]
}

// Direct turns an outgoing request into the one for the current endpoint: its
// URL, its body with the served model's name spliced in, and its headers. It
// returns false, and the exchange keeps why, if that cannot be done.
func (x *Exchange) Direct(r *http.Request) bool {
	x.mu.Lock()
	e, body, lease := x.endpoint, x.body, x.lease
	again := e != nil && x.resends() && (e.Replica.URL.Scheme != "http" || !x.elsewhere())
	x.mu.Unlock()
	if e == nil || body == nil && x.Route.Kind != KindUpgrade {
		x.Fail(errEnded)
		return false
	}
	u := e.Replica.URL
	r.URL.Scheme, r.Host = u.Scheme, u.Host
	r.URL.Path, r.URL.RawPath = u.Path+x.Route.Path, ""
	x.Authorize(r.Header)
	if x.Route.Kind == KindUpgrade {
		q := r.URL.Query()
		maps.DeleteFunc(q, func(name string, _ []string) bool { return namesSecret(name) })
		q.Set("model", e.Served(x.serving))
		r.URL.RawQuery = q.Encode()
		r.Body, r.ContentLength, r.TransferEncoding, r.Trailer = http.NoBody, 0, nil, nil // it has none
		return true
	}
	// Engines read no query, but some clients put their key there.
	r.URL.RawQuery = ""
	var room [openai.MaxEdits]openai.Edit
	rewrite := openai.Rewrite{Model: e.Served(x.serving), InjectUsage: x.injects}
	if e.Schedules {
		rewrite.Priority = lease.EnginePriority()
	}
	if x.serving.Prefix.Isolation && x.Route.Work == WorkGenerate {
		rewrite.CacheSalt = salt(x.serving, x.promptOf(body))
	}
	edits := x.Fields.Edits(room[:0], body, rewrite)
	spliced, err := openai.Splice(body, edits)
	if err != nil {
		x.Fail(fmt.Errorf("%w: %w", ErrInternal, err))
		return false
	}
	r.Body = io.NopCloser(spliced.NewReader())
	// The body to be had again is what lets a transport send a request anew on
	// its own, where a kept connection turned out to be closed. It can do so only to
	// the same replica, which may be about to end: another one is better, where the
	// transport tells that this is what happened. Over TLS it does not.
	r.GetBody = nil
	if again {
		r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(spliced.NewReader()), nil }
	}
	r.ContentLength = spliced.Len()
	r.TransferEncoding, r.Trailer = nil, nil // of the client's body
	return true
}

// InjectsUsage reports whether the engine is asked for a usage chunk that the
// client did not ask for, and must not see.
func (x *Exchange) InjectsUsage() bool { return x.injects }

// Authorize gives an outgoing request the engine's credential instead of the
// client's, and what else engines are to see.
func (x *Exchange) Authorize(h http.Header) {
	// Less first, then more: Go's maps grow when they are written to with eight
	// entries. This attempt's replica may be another one than the last one's.
	delete(h, "Authorization")
	// No client knows the id: with it there, the header was cleaned before.
	if id := h["X-Request-Id"]; len(id) == 1 && id[0] == x.ID {
		x.credential(h)
		return
	}
	StripCredentials(h)
	StripWishes(h)
	// A compressed stream could neither be read for usage nor be flushed event by
	// event.
	delete(h, "Accept-Encoding")
	// Go keeps the client's Content-Length in the header map and sends its own
	// from the field: two of them make strict engines refuse the request.
	delete(h, "Content-Length")
	h["X-Request-Id"] = []string{x.ID}
	x.credential(h)
}

// credential adds what the current replica's engine asks for.
func (x *Exchange) credential(h http.Header) {
	if e := x.Endpoint(); e != nil && e.APIKey != "" {
		h["Authorization"] = []string{"Bearer " + e.APIKey}
	}
}
