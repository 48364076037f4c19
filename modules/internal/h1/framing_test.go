package h1

import (
	"errors"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"
)

// TestFraming sends one answer and closes the connection; whether the client
// would have kept it is seen before.
func TestFraming(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\n"
	tests := []struct {
		name, answer, method string

		status  int
		body    string
		trailer http.Header
		headErr string // RoundTrip's
		bodyErr error
		kept    bool
	}{
		{name: "length", answer: okAnswer, status: 200, body: "ok", kept: true},
		{name: "length zero", answer: ok + "Content-Length: 0\r\n\r\n", status: 200, kept: true},
		{name: "length cut", answer: ok + "Content-Length: 5\r\n\r\nabc", status: 200, body: "abc", bodyErr: io.ErrUnexpectedEOF},
		{name: "length, nothing came", answer: ok + "Content-Length: 5\r\n\r\n", status: 200, bodyErr: io.ErrUnexpectedEOF},
		{name: "equal lengths", answer: ok + "Content-Length: 2\r\nContent-Length: 2\r\n\r\nok", status: 200, body: "ok", kept: true},
		{name: "two lengths", answer: ok + "Content-Length: 2\r\nContent-Length: 3\r\n\r\nok", headErr: "multiple Content-Length"},
		{name: "negative length", answer: ok + "Content-Length: -1\r\n\r\n", headErr: "bad Content-Length"},
		{name: "no number", answer: ok + "Content-Length: two\r\n\r\nok", headErr: "bad Content-Length"},
		{name: "signed length", answer: ok + "Content-Length: +2\r\n\r\nok", headErr: "bad Content-Length"},
		{name: "leftover", answer: okAnswer + "more", status: 200, body: "ok"},
		{name: "second answer", answer: okAnswer + okAnswer, status: 200, body: "ok"},
		{name: "leftover without a body", answer: "HTTP/1.1 204 No Content\r\n\r\nmore", status: 204},

		{name: "chunked", answer: ok + "Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n1\r\n!\r\n0\r\n\r\n", status: 200, body: "ok!", kept: true},
		{name: "chunk extensions", answer: ok + "Transfer-Encoding: chunked\r\n\r\n2;a=b;c\r\nok\r\n0;last\r\n\r\n", status: 200, body: "ok", kept: true},
		{
			name: "trailers", answer: ok + "Transfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 1\r\nX-Late: 2\r\n\r\n",
			status: 200, body: "ok", trailer: http.Header{"X-Sum": {"1"}, "X-Late": {"2"}}, kept: true,
		},
		{name: "chunked cut", answer: ok + "Transfer-Encoding: chunked\r\n\r\n5\r\nab", status: 200, body: "ab", bodyErr: io.ErrUnexpectedEOF},
		{name: "chunked, no last chunk", answer: ok + "Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n", status: 200, body: "ok", bodyErr: io.ErrUnexpectedEOF},
		{name: "chunked, leftover", answer: ok + "Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\nX", status: 200, body: "ok"},
		{name: "chunked and length", answer: ok + "Transfer-Encoding: chunked\r\nContent-Length: 9\r\n\r\n2\r\nok\r\n0\r\n\r\n", status: 200, body: "ok", kept: true},
		{name: "other coding", answer: ok + "Transfer-Encoding: gzip\r\n\r\n", headErr: "unsupported transfer encoding"},

		{name: "close", answer: ok + "Connection: close\r\nContent-Length: 2\r\n\r\nok", status: 200, body: "ok"},
		{name: "close among others", answer: ok + "Connection: x, Close\r\nContent-Length: 2\r\n\r\nok", status: 200, body: "ok"},
		{name: "until the end", answer: ok + "\r\nall of this", status: 200, body: "all of this"},
		{name: "HTTP/1.0", answer: "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", status: 200, body: "ok"},
		{name: "HTTP/1.0 until the end", answer: "HTTP/1.0 200 OK\r\n\r\nok", status: 200, body: "ok"},
		{name: "HTTP/1.0 kept", answer: "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok", status: 200, body: "ok", kept: true},

		{name: "204", answer: "HTTP/1.1 204 No Content\r\n\r\n", status: 204, kept: true},
		{name: "304 with a length", answer: "HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n", status: 304, kept: true},
		{name: "HEAD", method: http.MethodHead, answer: ok + "Content-Length: 7\r\n\r\n", status: 200, kept: true},
		{name: "HEAD chunked", method: http.MethodHead, answer: ok + "Transfer-Encoding: chunked\r\n\r\n", status: 200, kept: true},

		{name: "garbage", answer: "hello\r\n\r\n", headErr: "malformed HTTP"},
		{name: "TLS alert", answer: "\x15\x03\x01\x00\x02\x02\x16\n", headErr: "malformed HTTP"},
		{name: "cut head", answer: ok + "Content-Le", headErr: "unexpected EOF"},
		{name: "nothing", answer: "", headErr: "unexpected EOF"},
		{name: "status too low", answer: "HTTP/1.1 099 Odd\r\n\r\n", headErr: "malformed status code"},
		{name: "switch of protocols", answer: "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", headErr: "switched protocols"},
		{name: "huge header", answer: ok + "X: " + strings.Repeat("a", DefaultMaxResponseHeader) + "\r\n\r\n", headErr: ErrHeaderTooLarge.Error()},
		{name: "endless header line", answer: strings.Repeat("a", 2*DefaultMaxResponseHeader), headErr: ErrHeaderTooLarge.Error()},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			seen := make(chan struct{})
			s := serve(t, func(_ int, p *peer) {
				p.request()
				p.send(tt.answer)
				if !tt.kept {
					_ = p.CloseWrite()
				}
				<-seen
			})
			defer close(seen)
			tr := newTransport(t)
			if tt.method == "" {
				tt.method = http.MethodGet
			}
			res, body, err := roundTrip(t, tr, newRequest(t, tt.method, s.addr, ""))
			if tt.headErr != "" {
				if err == nil || res != nil || !strings.Contains(err.Error(), tt.headErr) {
					t.Fatalf("answer %+v, error %v, want %q", res, err, tt.headErr)
				}
				if strings.Contains(err.Error(), "hello") || len(err.Error()) > 200 {
					t.Fatalf("the answer's own text is in the error %q", err)
				}
				if e := failure(t, err); e.Op != OpRead || !e.Sent || e.Answered != (tt.answer != "") || e.Reused {
					t.Fatalf("%+v", e)
				}
				return
			}
			if res == nil || res.StatusCode != tt.status || body != tt.body || !errors.Is(err, tt.bodyErr) {
				t.Fatalf("answer %+v, body %q, error %v", res, body, err)
			}
			if !maps.EqualFunc(res.Trailer, tt.trailer, func(a, b []string) bool { return a[0] == b[0] }) {
				t.Fatalf("trailer %v, want %v", res.Trailer, tt.trailer)
			}
			if kept := idleConns(tr) == 1; kept != tt.kept {
				t.Fatalf("kept is %v, want %v", kept, tt.kept)
			}
		})
	}
}

// TestResponseHeaderLimit is the limit's edge.
func TestResponseHeaderLimit(t *testing.T) {
	const head = "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"
	s := serve(t, always(head+strings.Repeat("b", 100000)))
	for limit, want := range map[int64]error{int64(len(head)): nil, int64(len(head)) - 1: ErrHeaderTooLarge} {
		tr := newTransport(t)
		tr.MaxResponseHeader = limit
		_, body, err := roundTrip(t, tr, newRequest(t, http.MethodGet, s.addr, ""))
		if !errors.Is(err, want) || want == nil && len(body) != 100000 {
			t.Errorf("limit %d: body of %d bytes, error %v, want %v", limit, len(body), err, want)
		}
	}
}
