package h1

import (
	"bufio"
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// outcome is what a transport made of an answer.
type outcome struct {
	headErr error
	res     *http.Response
	body    string
	bodyErr error
}

// answerTo dials a server that reads one request and answers it with the given
// bytes, cut into pieces of the given sizes over and over, and then closes.
func answerTo(answer string, pieces []byte) func(context.Context, string) (net.Conn, error) {
	return func(context.Context, string) (net.Conn, error) {
		near, far := net.Pipe()
		go func() {
			defer far.Close()
			req, err := http.ReadRequest(bufio.NewReader(far))
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, req.Body)
			for i, rest := 0, answer; rest != ""; i++ {
				n := len(rest)
				if len(pieces) > 0 {
					n = min(n, int(pieces[i%len(pieces)])+1)
				}
				if _, err := io.WriteString(far, rest[:n]); err != nil {
					return
				}
				rest = rest[n:]
			}
		}()
		return near, nil
	}
}

func outcomeOf(t *testing.T, rt http.RoundTripper, method string) (o outcome) {
	t.Helper()
	body := ""
	if method == http.MethodPost {
		body = "{}"
	}
	req := newRequest(t, method, "a:1", body)
	req.Close = true
	o.res, o.headErr = rt.RoundTrip(req)
	if o.headErr != nil {
		return o
	}
	b, err := io.ReadAll(o.res.Body)
	o.res.Body.Close()
	o.body, o.bodyErr = string(b), err
	return o
}

// FuzzResponse compares what this transport and [http.Transport] make of an
// answer. Three differences are meant: this one refuses to switch protocols and
// statuses below 100, and it keeps the answer's text out of errors.
func FuzzResponse(f *testing.F) {
	const ok = "HTTP/1.1 200 OK\r\n"
	for _, answer := range []string{
		okAnswer, okAnswer + "more", ok + "Content-Length: 5\r\n\r\nabc", ok + "\r\nto the end",
		ok + "Content-Length: 2\r\nContent-Length: 2\r\n\r\nok", ok + "Content-Length: 2\r\nContent-Length: 3\r\n\r\nok",
		ok + "Content-Length: -1\r\n\r\n", ok + "Transfer-Encoding: gzip\r\n\r\n", ok + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		ok + "Transfer-Encoding: chunked\r\nContent-Length: 9\r\n\r\n2;x=y\r\nok\r\n0\r\n\r\n",
		ok + "Transfer-Encoding: chunked\r\nTrailer: A\r\n\r\n1\r\no\r\n0\r\nA: b\r\nC: d\r\n\r\n",
		ok + "Transfer-Encoding: chunked\r\nTrailer: Content-Length\r\n\r\n0\r\n\r\n",
		ok + "Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n", ok + "Transfer-Encoding: chunked\r\n\r\n2\r\nokX\r\n0\r\n\r\n",
		ok + "Transfer-Encoding: chunked\r\n\r\n2\nok\n0\n\n", ok + "Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nbad trailer\r\n\r\n",
		"HTTP/1.1 100 Continue\r\n\r\n" + okAnswer, "HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n" + okAnswer, "HTTP/1.1 100 Continue\r\n\r\n",
		"HTTP/1.1 101 Switching Protocols\r\n\r\n", "HTTP/1.1 101 S\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nx",
		"HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\nok", "HTTP/1.1 304 N\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok", "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n",
		"HTTP/2.0 200 OK\r\n\r\n", "HTTP/0.9 200\r\n\r\nx", "HTTP/1.1 99 X\r\n\r\n", "HTTP/1.1 +12 X\r\n\r\n", "HTTP/1.1 000\r\n\r\n", "http/1.1 200 OK\r\n\r\n",
		"", "\r\n", "garbage\r\n\r\n", ok + " folded: x\r\n\r\n", ok + "A: b\r\n c\r\nD: e\r\n\r\n", ok + "No colon\r\n\r\n", ok + "A : b\r\n\r\n", ok + "A\x00: b\r\n\r\n",
		ok + "Connection: close\r\nPragma: no-cache\r\nContent-Length: 0\r\n\r\n", ok + "X: " + strings.Repeat("a", DefaultMaxResponseHeader) + "\r\n\r\n",
	} {
		for method := range uint8(3) {
			f.Add(method, answer, []byte{})
			f.Add(method, answer, []byte{0, 7, 2})
		}
	}
	f.Fuzz(func(t *testing.T, m uint8, answer string, pieces []byte) {
		method := []string{http.MethodGet, http.MethodHead, http.MethodPost}[m%3]
		ours := &Transport{dial: answerTo(answer, pieces)}
		dial := answerTo(answer, pieces)
		theirs := &http.Transport{
			DialContext:            func(ctx context.Context, _, addr string) (net.Conn, error) { return dial(ctx, addr) },
			DisableKeepAlives:      true,
			DisableCompression:     true,
			MaxResponseHeaderBytes: DefaultMaxResponseHeader,
		}
		got, want := outcomeOf(t, ours, method), outcomeOf(t, theirs, method)
		if idleConns(ours) != 0 {
			t.Fatal("a connection that was to be closed is kept")
		}
		if got.headErr != nil && want.headErr == nil && want.res.StatusCode < 200 {
			return // meant
		}
		if (got.headErr == nil) != (want.headErr == nil) {
			t.Fatalf("%q: error %v, want %v", answer, got.headErr, want.headErr)
		}
		if got.headErr != nil {
			return
		}
		a, b := got.res, want.res
		if a.Status != b.Status || a.StatusCode != b.StatusCode || a.Proto != b.Proto || a.ContentLength != b.ContentLength ||
			a.Close != b.Close || !slices.Equal(a.TransferEncoding, b.TransferEncoding) ||
			!maps.EqualFunc(a.Header, b.Header, slices.Equal) || !maps.EqualFunc(a.Trailer, b.Trailer, slices.Equal) {
			t.Fatalf("%q: %+v, want %+v", answer, a, b)
		}
		if got.body != want.body || (got.bodyErr == nil) != (want.bodyErr == nil) ||
			errors.Is(got.bodyErr, io.ErrUnexpectedEOF) != errors.Is(want.bodyErr, io.ErrUnexpectedEOF) {
			t.Fatalf("%q: body %q, error %v, want %q, %v", answer, got.body, got.bodyErr, want.body, want.bodyErr)
		}
	})
}
