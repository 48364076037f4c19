package exchange

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"

	"github.com/llmgw/llmgw/modules/internal/openai"
)

// bodyOf returns a valid request of exactly n bytes.
func bodyOf(n int) string {
	const head, tail = `{"model":"m","prompt":"`, `"}`
	return head + strings.Repeat("x", n-len(head)-len(tail)) + tail
}

func TestRead(t *testing.T) {
	w := newWorld(t, "gpu1:8000")
	r := newRequest(chatBody)
	x := w.open(t, r)
	if err := x.Read(r); err != nil {
		t.Fatal(err)
	}
	if x.Requested != "m" || x.Fields.MaxTokens != 10 || x.Fields.Model != "m" {
		t.Errorf("read %q, %+v", x.Requested, x.Fields)
	}
	if left, err := io.ReadAll(r.Body); err != nil || len(left) != 0 || r.ContentLength != 0 {
		t.Errorf("the request keeps %q of length %d, %v", left, r.ContentLength, err)
	}
	if used := w.Budget.Used(); used != int64(len(chatBody)) {
		t.Errorf("%d bytes are held of a body of %d", used, len(chatBody))
	}
	// Again, from a request that would now be another.
	if err := x.Read(newRequest("nonsense")); err != nil || x.Requested != "m" {
		t.Errorf("read again: %v", err)
	}
	x.End()
	w.atRest(t)
}

// Whatever its size and how it comes: the body is read as it was sent, takes no
// more than twice of what has come while it does, and its own size in the end.
func TestReadHoldsWhatItNeeds(t *testing.T) {
	w := newWorld(t)
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.OneOf(
			rapid.IntRange(30, 200),
			rapid.IntRange(4<<10-2, 4<<10+2),
			rapid.IntRange(64<<10-2, 64<<10+2),
			rapid.IntRange(30, 1<<20),
		).Draw(t, "size")
		body := bodyOf(size)
		r := chunked(body, rapid.SampledFrom([]int{0, 1000, 4096, 65536, 100000}).Draw(t, "read"))
		if rapid.Bool().Draw(t, "length known") {
			r.ContentLength = int64(size)
		}
		x := Open(w.Runtime, r, FindRoute(chatPath, nil))
		defer x.End()
		x.Anonymous = true
		inner, come := r.Body, 0
		r.Body = readFunc(func(p []byte) (int, error) {
			if held := int(w.Budget.Used()); held > max(2*come, firstBuffer) {
				t.Fatalf("%d bytes are held after %d have come", held, come)
			}
			n, err := inner.Read(p)
			come += n
			return n, err
		})
		if err := x.Read(r); err != nil {
			t.Fatal(err)
		}
		if string(x.body) != body {
			t.Fatal("the body was changed")
		}
		if held := w.Budget.Used(); held != int64(size) || cap(x.body) != size {
			t.Fatalf("%d bytes are held, %d set aside, for %d", held, cap(x.body), size)
		}
		x.End()
		if held := w.Budget.Used(); held != 0 {
			t.Fatalf("%d bytes are held at rest", held)
		}
	})
}

// readFunc is a body that reads by a function.
type readFunc func([]byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }
func (readFunc) Close() error                 { return nil }

// broken is a body that ends in an error.
func broken(text string, err error) io.ReadCloser {
	return io.NopCloser(io.MultiReader(strings.NewReader(text), readFunc(func([]byte) (int, error) { return 0, err })))
}

func TestReadFailures(t *testing.T) {
	const limit = 1000
	for _, c := range []struct {
		name    string
		request func() *http.Request
		class   error
		says    string
	}{
		{
			"longer than the limit, and says so: not one byte is read",
			func() *http.Request {
				r := newRequest("")
				r.ContentLength = limit + 1
				r.Body = readFunc(func([]byte) (int, error) { panic("read") })
				return r
			},
			ErrTooLarge, "larger than the limit of 1000 B",
		},
		{
			"longer than the limit, and does not say so",
			func() *http.Request { return chunked(bodyOf(limit+1), 0) },
			ErrTooLarge, "larger than the limit of 1000 B",
		},
		{
			"without an end",
			func() *http.Request {
				r := chunked("", 0)
				r.Body = readFunc(func(p []byte) (int, error) { return len(p), nil })
				return r
			},
			ErrTooLarge, "larger than the limit",
		},
		{
			"a limit of the server's own",
			func() *http.Request {
				r := chunked("", 0)
				r.Body = http.MaxBytesReader(nil, io.NopCloser(strings.NewReader(bodyOf(500))), 512-100)
				return r
			},
			ErrTooLarge, "larger than the limit of 412 B",
		},
		{
			"shorter than its Content-Length",
			func() *http.Request {
				r := newRequest(bodyOf(100))
				r.ContentLength = 200
				return r
			},
			ErrRequest, "ended early",
		},
		{
			"broken off",
			func() *http.Request {
				r := chunked("", 0)
				r.Body = broken(bodyOf(100), io.ErrUnexpectedEOF)
				return r
			},
			ErrRequest, "ended early",
		},
		{
			"broken off because the client left",
			func() *http.Request {
				r := gone(chunked("", 0))
				r.Body = broken("{", errors.New("reset"))
				return r
			},
			context.Canceled, "",
		},
		{
			"compressed",
			func() *http.Request {
				r := newRequest(bodyOf(100))
				r.Header.Set("Content-Encoding", "gzip")
				return r
			},
			ErrRequest, `Content-Encoding "gzip" is not supported`,
		},
		{
			"no body",
			func() *http.Request { return httptest.NewRequest(http.MethodPost, chatPath, nil) },
			nil, "",
		},
		{
			"an empty body",
			func() *http.Request { return newRequest("") },
			nil, "",
		},
		{
			"an empty body of unknown length",
			func() *http.Request { return chunked("", 0) },
			nil, "",
		},
		{
			"not JSON",
			func() *http.Request { return newRequest("{") },
			nil, "",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			r := c.request()
			x := w.open(t, r)
			x.Options.BodyLimit = limit
			err := x.Read(r)
			switch {
			case err == nil:
				t.Fatal("it was read")
			case c.class != nil && !errors.Is(err, c.class):
				t.Errorf("error %v, want a %v", err, c.class)
			case c.class == nil && Answer(err).Status != http.StatusBadRequest:
				t.Errorf("error %v, want status 400", err)
			case !strings.Contains(err.Error(), c.says):
				t.Errorf("error %v, want it to say %q", err, c.says)
			}
			if !errors.Is(x.Err(), err) || !errors.Is(x.Read(r), err) {
				t.Error("the exchange does not keep the error")
			}
			x.End()
			w.atRest(t)
		})
	}
}

func TestReadUpToTheLimit(t *testing.T) {
	for _, limit := range []int{100, 4 << 10, 5000, 8 << 10, 64 << 10, 100000, 128 << 10} {
		for _, known := range []bool{true, false} {
			for _, over := range []int{-1, 0, 1} {
				w := newWorld(t)
				r := chunked(bodyOf(limit+over), 0)
				if known {
					r.ContentLength = int64(limit + over)
				}
				if limit%1000 == 0 { // the end comes together with the last bytes
					r.Body = io.NopCloser(iotest.DataErrReader(r.Body))
				}
				x := w.open(t, r)
				x.Options.BodyLimit = int64(limit)
				if err := x.Read(r); (err != nil) != (over > 0) || err != nil && !errors.Is(err, ErrTooLarge) {
					t.Errorf("%d bytes of %d, length known: %v: %v", limit+over, limit, known, err)
				}
				x.End()
				w.atRest(t)
			}
		}
	}
}

// A client that announces much and sends little must not hold much.
func TestAnnouncedBodyIsNotSetAside(t *testing.T) {
	w := newWorld(t)
	r := newRequest("")
	r.ContentLength = 32 << 20
	r.Body = readFunc(func([]byte) (int, error) {
		if held := w.Budget.Used(); held > firstBuffer {
			t.Errorf("%d bytes are held before one has come", held)
		}
		return 0, io.ErrUnexpectedEOF
	})
	if err := w.open(t, r).Read(r); !errors.Is(err, ErrRequest) {
		t.Errorf("error %v", err)
	}
}

func TestReadOfAForm(t *testing.T) {
	w := newWorld(t, "gpu1:8000")
	body := "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n" +
		"--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\nRIFF\r\n--b--\r\n"
	r := newRequest(body)
	r.Header.Set("Content-Type", `multipart/form-data; boundary=b`)
	x := Open(w.Runtime, r, FindRoute("/v1/audio/transcriptions", nil))
	defer x.End()
	x.Anonymous = true
	if err := x.Read(r); err != nil || x.Requested != "m" || x.InjectsUsage() {
		t.Errorf("read %q, %v", x.Requested, err)
	}
}

func TestReadOfAQuery(t *testing.T) {
	for query, want := range map[string]string{
		"?model=m":         "m",
		"?model=a%20b&x=1": "a b",
		"":                 "",
		"?model=":          "",
		"?model=a&model=b": "",
		"?Model=a":         "",
	} {
		w := newWorld(t)
		r := httptest.NewRequest(http.MethodGet, "/v1/realtime"+query, nil)
		x := Open(w.Runtime, r, FindRoute("/v1/realtime", nil))
		x.Anonymous = true
		err := x.Read(r)
		if x.Requested != want || (err == nil) != (want != "") || err != nil && !errors.Is(err, ErrRequest) {
			t.Errorf("%q: read %q, %v", query, x.Requested, err)
		}
		x.End()
		w.atRest(t)
	}
}

func TestInjectsUsage(t *testing.T) {
	const stream = `{"model":"m","stream":true,"messages":[]}`
	for _, c := range []struct {
		path, body string
		on, want   bool
	}{
		{chatPath, stream, true, true},
		{chatPath, stream, false, false},
		{"/v1/completions", stream, true, true},
		{"/v1/responses", stream, true, false},
		{chatPath, `{"model":"m"}`, true, false},
		{chatPath, `{"model":"m","stream":true,"stream_options":{"include_usage":true}}`, true, false},
	} {
		w := newWorld(t)
		r := newRequest(c.body)
		x := Open(w.Runtime, r, FindRoute(c.path, nil))
		x.Anonymous, x.Options.InjectUsage = true, c.on
		if err := x.Read(r); err != nil || x.InjectsUsage() != c.want {
			t.Errorf("%s %s, on: %v: %v, %v", c.path, c.body, c.on, x.InjectsUsage(), err)
		}
		x.End()
	}
}

func TestSizeText(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 1000: "1000 B", 1024: "1 KiB", 1536: "1536 B", 32 << 20: "32 MiB", 1 << 30: "1 GiB", 1 << 40: "1024 GiB",
	} {
		if got := sizeText(n); got != want {
			t.Errorf("sizeText(%d) = %q, want %q", n, got, want)
		}
	}
}

// The fields of a request do not share the body's memory, which is given back
// while they live on.
func TestFieldsOutliveTheBody(t *testing.T) {
	w := newWorld(t, "gpu1:8000")
	x := w.ask(t, `{"model":"alias","user":"u-1","messages":[]}`)
	body := slices.Clone(x.body)
	for i := range x.body {
		x.body[i] = '!'
	}
	again, err := openai.Scan(body)
	if err != nil {
		t.Fatal(err)
	}
	if x.Fields.User != again.User || x.Requested != "alias" || x.Model.Name != "m" {
		t.Errorf("user %q, model %q", x.Fields.User, x.Requested)
	}
}
