package h1

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/net/http/httpguts"
)

// Supports reports whether a [Transport] makes requests like req.
func Supports(req *http.Request) bool {
	if req.URL == nil || req.URL.Scheme != "http" || req.URL.Opaque != "" || req.Method == http.MethodConnect {
		return false
	}
	if len(req.Trailer) > 0 || len(req.TransferEncoding) > 0 {
		return false
	}
	// A body with the length 0 is one of unknown length, says http.Request.
	if hasBody := req.Body != nil && req.Body != http.NoBody; hasBody != (req.ContentLength > 0) {
		return false
	}
	for name := range req.Header {
		if len(name) == len("Upgrade") && strings.EqualFold(name, "Upgrade") {
			return false
		}
	}
	return true
}

// repeatable reports whether the request may be sent again though it may have
// been received.
func repeatable(req *http.Request) bool {
	if req.GetBody != nil {
		return true
	}
	switch req.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions:
		return req.ContentLength <= 0
	}
	return false
}

// asksToClose reports whether the request tells the server to close the
// connection after the answer.
func asksToClose(req *http.Request) bool {
	return req.Close || httpguts.HeaderValuesContainsToken(req.Header["Connection"], "close")
}

// appendHead appends the request's head as HTTP/1.1 wants it (RFC 9112, section
// 3), or says what in the request cannot be written so that a server reads just
// that.
func appendHead(b []byte, req *http.Request) ([]byte, error) {
	method, target, host := req.Method, req.URL.RequestURI(), req.Host
	if method == "" {
		method = http.MethodGet
	}
	if host == "" {
		host = req.URL.Host
	}
	host = withoutZone(host)
	switch {
	case !httpguts.ValidHeaderFieldName(method): // both are tokens
		return b, fmt.Errorf("invalid method %q", method)
	case req.URL.Host == "":
		return b, errors.New("the URL has no host")
	case !httpguts.ValidHostHeader(host):
		return b, fmt.Errorf("invalid host %q", host)
	case target[0] != '/' && (target != "*" || method != http.MethodOptions), !printable(target):
		// A target may hold a user's data, so it is not shown.
		return b, errors.New("invalid request target: it must begin with a slash and be without blanks and control characters")
	}
	b = append(b, method...)
	b = append(b, ' ')
	b = append(b, target...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, host...)
	b = append(b, "\r\n"...)
	for name, values := range req.Header {
		if !httpguts.ValidHeaderFieldName(name) {
			return b, fmt.Errorf("invalid header field name %q", name)
		}
		kind := kindOf(name)
		if kind == fieldOurs {
			continue
		}
		if kind == fieldTE {
			if !httpguts.HeaderValuesContainsToken(values, "trailers") {
				continue
			}
			values = []string{"trailers"}
		}
		for _, value := range values {
			if !httpguts.ValidHeaderFieldValue(value) {
				return b, fmt.Errorf("invalid value of header field %q", name) // the value may be secret
			}
			if kind == fieldUserAgent && value == "" {
				continue
			}
			b = append(b, name...)
			b = append(b, ": "...)
			b = append(b, value...)
			b = append(b, "\r\n"...)
		}
	}
	length := max(req.ContentLength, 0)
	if length > 0 || method == http.MethodPost || method == http.MethodPut || method == http.MethodPatch {
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, length, 10)
		b = append(b, "\r\n"...)
	}
	if asksToClose(req) {
		b = append(b, "Connection: close\r\n"...)
	}
	return append(b, "\r\n"...), nil
}

type fieldKind int

const (
	fieldPlain     fieldKind = iota
	fieldOurs                // written from the request's own fields, or not at all
	fieldTE                  // only "trailers" is true of this transport
	fieldUserAgent           // an empty one means that there is none
)

// kindOf tells apart the fields that a transport must not copy. Names in the map
// may have any case, and a second Content-Length is how requests are smuggled.
func kindOf(name string) fieldKind {
	var ours []string
	switch len(name) {
	case 2:
		if strings.EqualFold(name, "Te") {
			return fieldTE
		}
	case 4:
		ours = []string{"Host"}
	case 6:
		ours = []string{"Expect"}
	case 7:
		ours = []string{"Trailer", "Upgrade"}
	case 10:
		if strings.EqualFold(name, "User-Agent") {
			return fieldUserAgent
		}
		ours = []string{"Connection", "Keep-Alive"}
	case 14:
		ours = []string{"Content-Length"}
	case 16:
		ours = []string{"Proxy-Connection"}
	case 17:
		ours = []string{"Transfer-Encoding"}
	}
	for _, own := range ours {
		if strings.EqualFold(name, own) {
			return fieldOurs
		}
	}
	return fieldPlain
}

// printable reports whether s has neither blanks nor control characters.
func printable(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] == 0x7f {
			return false
		}
	}
	return true
}

// withoutZone removes the zone of an IPv6 literal, which has a meaning on this
// machine only (RFC 6874, section 1).
func withoutZone(host string) string {
	if !strings.HasPrefix(host, "[") {
		return host
	}
	zone, end := strings.IndexByte(host, '%'), strings.LastIndexByte(host, ']')
	if zone < 0 || end < zone {
		return host
	}
	return host[:zone] + host[end:]
}

// appendBody appends all of body, which must have exactly size bytes.
func appendBody(b []byte, body io.Reader, size int64) ([]byte, error) {
	start := len(b)
	// One byte more than there should be tells a longer body.
	b = append(b, make([]byte, size+1)...)
	n, err := io.ReadFull(body, b[start:])
	switch {
	case err == nil:
		return b[:start], errLongBody
	case err != io.EOF && err != io.ErrUnexpectedEOF:
		return b[:start], err
	case int64(n) < size:
		return b[:start], errShortBody
	}
	return b[:start+n], nil
}

// maxKeptBuffer keeps one request with a huge header from pinning its memory.
const maxKeptBuffer = 2 * smallBody

// buffers holds what requests are put together in on their way out.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

func freeBuffer(b *[]byte) {
	if cap(*b) <= maxKeptBuffer {
		*b = (*b)[:0]
		buffers.Put(b)
	}
}
