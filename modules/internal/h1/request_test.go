package h1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"testing"
)

func TestHead(t *testing.T) {
	tests := []struct {
		name   string
		method string
		url    string
		host   string
		header http.Header
		length int64
		close  bool
		want   string // the lines of the fields in order, without the blank one
	}{
		{name: "plain", url: "http://a:1", want: "GET / HTTP/1.1|Host: a:1"},
		{name: "query", url: "http://a/b%2Fc?d=e%20f", host: "x", want: "GET /b%2Fc?d=e%20f HTTP/1.1|Host: x"},
		{name: "double slash", url: "http://a//b", want: "GET //b HTTP/1.1|Host: a"},
		{name: "any", method: "OPTIONS", url: "http://a/*", want: "OPTIONS /* HTTP/1.1|Host: a"},
		{name: "zone", url: "http://[fe80::1%25eth0]:1/", want: "GET / HTTP/1.1|Host: [fe80::1]:1"},
		{name: "body", method: "POST", url: "http://a/", length: 12, want: "POST / HTTP/1.1|Host: a|Content-Length: 12"},
		{name: "empty body", method: "PUT", url: "http://a/", want: "PUT / HTTP/1.1|Host: a|Content-Length: 0"},
		{name: "no body, says the caller", method: "POST", url: "http://a/", length: -1, want: "POST / HTTP/1.1|Host: a|Content-Length: 0"},
		{name: "close", url: "http://a/", close: true, want: "GET / HTTP/1.1|Host: a|Connection: close"},
		{
			name: "the client's own framing and hop-by-hop fields", method: "POST", url: "http://a/", length: 2,
			header: http.Header{
				"Content-Length": {"9"}, "content-length": {"8"}, "Transfer-Encoding": {"chunked"}, "transfer-encoding": {"x"},
				"Host": {"evil"}, "Connection": {"keep-alive"}, "Keep-Alive": {"1"}, "Proxy-Connection": {"x"}, "Te": {"gzip"},
				"Trailer": {"X"}, "Expect": {"100-continue"}, "X-Kept": {"1", "2"},
			},
			want: "POST / HTTP/1.1|Host: a|X-Kept: 1|X-Kept: 2|Content-Length: 2",
		},
		{name: "trailers are welcome", url: "http://a/", header: http.Header{"Te": {"gzip, trailers;q=0.5", "trailers"}}, want: "GET / HTTP/1.1|Host: a|Te: trailers"},
		{name: "user agent", url: "http://a/", header: http.Header{"User-Agent": {"x/1"}}, want: "GET / HTTP/1.1|Host: a|User-Agent: x/1"},
		{name: "no user agent", url: "http://a/", header: http.Header{"User-Agent": {""}}, want: "GET / HTTP/1.1|Host: a"},
		{name: "empty value", url: "http://a/", header: http.Header{"X": {""}}, want: "GET / HTTP/1.1|Host: a|X: "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			u, err := url.Parse(tt.url)
			if err != nil {
				t.Fatal(err)
			}
			req := &http.Request{Method: tt.method, URL: u, Host: tt.host, Header: tt.header, ContentLength: tt.length, Close: tt.close}
			b, err := appendHead(nil, req)
			if want := strings.ReplaceAll(tt.want, "|", "\r\n") + "\r\n\r\n"; err != nil || string(b) != want {
				t.Fatalf("%q, error %v, want %q", b, err, want)
			}
		})
	}
}

func TestHeadRefusals(t *testing.T) {
	tests := map[string]struct {
		change func(*http.Request)
		want   string
	}{
		"method with a line":  {func(r *http.Request) { r.Method = "GET / HTTP/1.1\r\nX:" }, "invalid method"},
		"method with a blank": {func(r *http.Request) { r.Method = "GET /x" }, "invalid method"},
		"no host":             {func(r *http.Request) { r.URL.Host = "" }, "no host"},
		"host with a line":    {func(r *http.Request) { r.Host = "a\r\nX: y" }, "invalid host"},
		"host with a path":    {func(r *http.Request) { r.Host = "a b" }, "invalid host"},
		"name with a colon":   {func(r *http.Request) { r.Header["X: y\r\nZ"] = nil }, "invalid header field name"},
		"empty name":          {func(r *http.Request) { r.Header[""] = []string{"x"} }, "invalid header field name"},
		"value with a line":   {func(r *http.Request) { r.Header["X"] = []string{"secret\r\nY: z"} }, `invalid value of header field "X"`},
		"value with a zero":   {func(r *http.Request) { r.Header["X"] = []string{"secret\x00"} }, `invalid value of header field "X"`},
		"query with a blank":  {func(r *http.Request) { r.URL.RawQuery = "secret x" }, "invalid request target"},
		"query with a line":   {func(r *http.Request) { r.URL.RawQuery = "secret\r\nX: y" }, "invalid request target"},
		"relative path":       {func(r *http.Request) { r.URL.Path = "secret" }, "invalid request target"},
		"asterisk":            {func(r *http.Request) { r.URL.Path = "*" }, "invalid request target"},
	}
	s := serve(t, always(okAnswer))
	tr := newTransport(t)
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			req := newRequest(t, http.MethodPost, s.addr, "{}")
			tt.change(req)
			_, _, err := roundTrip(t, tr, req)
			if e := failure(t, err); e.Op != OpRequest || e.Sent || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "secret") {
				t.Fatalf("error %v, want %q", err, tt.want)
			}
		})
	}
	if n := s.accepted.Load(); n != 0 {
		t.Fatalf("%d connections for nothing", n)
	}
}

// TestUnsupported: the request is as it was, for another transport.
func TestUnsupported(t *testing.T) {
	for name, change := range map[string]func(*http.Request){
		"TLS":               func(r *http.Request) { r.URL.Scheme = "https" },
		"no URL":            func(r *http.Request) { r.URL = nil },
		"opaque":            func(r *http.Request) { r.URL.Opaque = "//b/c" },
		"CONNECT":           func(r *http.Request) { r.Method = http.MethodConnect },
		"upgrade":           func(r *http.Request) { r.Header.Set("Upgrade", "websocket") },
		"lower case":        func(r *http.Request) { r.Header["upgrade"] = []string{"websocket"} },
		"trailers":          func(r *http.Request) { r.Trailer = http.Header{"X": nil} },
		"transfer encoding": func(r *http.Request) { r.TransferEncoding = []string{"chunked"} },
		"unknown length":    func(r *http.Request) { r.ContentLength = -1 },
		"length is not set": func(r *http.Request) { r.ContentLength = 0 },
		"no body":           func(r *http.Request) { r.Body = nil },
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTransport(t)
			tr.dial = nil
			req := newRequest(t, http.MethodPost, "127.0.0.1:1", "{}")
			body := &closeNotifier{Reader: req.Body, closed: make(chan struct{})}
			req.Body = body
			change(req)
			res, err := tr.RoundTrip(req)
			if res != nil || !errors.Is(err, ErrUnsupported) {
				t.Fatalf("answer %v, error %v", res, err)
			}
			select {
			case <-body.closed:
				t.Fatal("the body was closed")
			default:
			}
			if b, err := io.ReadAll(body); string(b) != "{}" || err != nil {
				t.Fatalf("left of the body: %q, error %v", b, err)
			}
		})
	}
}

// FuzzRequest: whatever a request says, a server reads that very request, or it
// is not sent.
func FuzzRequest(f *testing.F) {
	f.Add("POST", "/v1/x", "a=b", "host:1", "X-A", "v", "X-B", "w", []byte("body"))
	f.Add("POST", "/", "", "h", "content-length", "0", "Transfer-Encoding", "chunked", []byte("0\r\n\r\nGET / HTTP/1.1\r\n\r\n"))
	f.Add("GET", "//x", "a b", "h\r\nX: y", "X", "a\r\nB: c", "Host", "z", []byte(nil))
	f.Add("PATCH", "/%2f?", "", "h", "x-a", " v ", "X-a", "\tw", []byte("b"))
	f.Add("", "/é\x7f", "#f", "[::1%25x]:1", "Connection", "close", "Te", "trailers", []byte("x"))
	f.Fuzz(func(t *testing.T, method, path, query, host, name1, value1, name2, value2 string, body []byte) {
		u := &url.URL{Scheme: "http", Host: "upstream:1", Path: path, RawQuery: query}
		req := &http.Request{
			Method: method, URL: u, Host: host, Header: http.Header{name1: {value1}},
			Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
		}
		req.Header[name2] = append(req.Header[name2], value2)
		if len(body) == 0 {
			req.Body = nil
		}
		if !Supports(req) {
			return
		}
		b, err := appendHead(nil, req)
		if err == nil && len(body) > 0 {
			b, err = appendBody(b, req.Body, req.ContentLength)
		}
		if err != nil {
			return
		}
		const sentinel = "GET /next HTTP/1.1\r\nHost: next\r\n\r\n"
		br := bufio.NewReader(io.MultiReader(bytes.NewReader(b), strings.NewReader(sentinel)))
		got, err := http.ReadRequest(br)
		if err != nil {
			t.Fatalf("%q cannot be read: %v", b, err)
		}
		gotBody, err := io.ReadAll(got.Body)
		if err != nil || !bytes.Equal(gotBody, body) {
			t.Fatalf("%q: body %q, error %v, want %q", b, gotBody, err, body)
		}
		want := method
		if want == "" {
			want = http.MethodGet
		}
		if got.Method != want || got.RequestURI != u.RequestURI() || got.ProtoMajor != 1 || got.ProtoMinor != 1 {
			t.Fatalf("%q is %s %q", b, got.Method, got.RequestURI)
		}
		if host == "" {
			host = u.Host
		}
		if got.Host != withoutZone(host) || got.Close != asksToClose(req) {
			t.Fatalf("%q: host %q, close %v", b, got.Host, got.Close)
		}
		wanted := wantedHeader(req)
		delete(got.Header, "Content-Length")
		delete(got.Header, "Connection")
		for name := range got.Header {
			slices.Sort(got.Header[name]) // names that differ in case only come in any order
		}
		if len(got.Header) != len(wanted) {
			t.Fatalf("%q: header %q, want %q", b, got.Header, wanted)
		}
		for name, values := range wanted {
			if !slices.Equal(got.Header[name], values) {
				t.Fatalf("%q: header %q, want %q", b, got.Header, wanted)
			}
		}
		if next, err := http.ReadRequest(br); err != nil || next.RequestURI != "/next" {
			t.Fatalf("%q is followed by %+v, error %v", b, next, err)
		}
	})
}

// wantedHeader is what a server has to read: names in canonical form, values
// trimmed and sorted.
func wantedHeader(req *http.Request) http.Header {
	h := http.Header{}
	for name, values := range req.Header {
		canonical := textproto.CanonicalMIMEHeaderKey(name)
		switch canonical {
		case "Host", "Expect", "Trailer", "Connection", "Keep-Alive", "Content-Length", "Proxy-Connection", "Transfer-Encoding":
			continue
		case "Te":
			if slices.ContainsFunc(values, func(v string) bool { return slices.Contains(splitTokens(v), "trailers") }) {
				h[canonical] = append(h[canonical], "trailers")
			}
			continue
		}
		for _, v := range values {
			if canonical == "User-Agent" && v == "" {
				continue
			}
			h[canonical] = append(h[canonical], textproto.TrimString(v))
		}
	}
	for name := range h {
		slices.Sort(h[name])
	}
	return h
}

func splitTokens(v string) []string {
	tokens := strings.Split(strings.ToLower(v), ",")
	for i := range tokens {
		tokens[i] = textproto.TrimString(tokens[i])
	}
	return tokens
}
