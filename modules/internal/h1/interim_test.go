package h1

import (
	"errors"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strings"
	"testing"
)

func traced(t *testing.T, addr string, got func(int, textproto.MIMEHeader) error) *http.Request {
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: got})
	return newRequestContext(ctx, t, http.MethodPost, addr, "{}")
}

func TestInterimAnswers(t *testing.T) {
	s := serve(t, always("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n"+okAnswer))
	tr := newTransport(t)
	var codes []int
	mustOK(t, tr, traced(t, s.addr, func(code int, h textproto.MIMEHeader) error {
		codes = append(codes, code)
		if code == http.StatusEarlyHints && h.Get("Link") != "a" {
			t.Errorf("header %v", h)
		}
		return nil
	}))
	if !slices.Equal(codes, []int{100, 103}) {
		t.Fatalf("codes %v", codes)
	}
	mustOK(t, tr, newRequest(t, http.MethodPost, s.addr, "{}"))
	if n := s.accepted.Load(); n != 1 {
		t.Fatalf("%d connections, want 1", n)
	}
}

func TestInterimAnswerRefusedByTrace(t *testing.T) {
	s := serve(t, always("HTTP/1.1 103 Early Hints\r\n\r\n"+okAnswer))
	refused := errors.New("refused")
	tr := newTransport(t)
	_, err := tr.RoundTrip(traced(t, s.addr, func(int, textproto.MIMEHeader) error { return refused }))
	if !errors.Is(err, refused) || idleConns(tr) != 0 {
		t.Fatalf("error %v, %d connections are kept", err, idleConns(tr))
	}
}

// TestInterimFlood: an endless run of interim answers ends at the limit on the
// head, whether somebody looks at them or not.
func TestInterimFlood(t *testing.T) {
	const interim = "HTTP/1.1 100 Continue\r\n\r\n"
	s := serve(t, func(_ int, p *peer) {
		p.request()
		for {
			if _, err := p.Write([]byte(strings.Repeat(interim, 100))); err != nil {
				return
			}
		}
	})
	tr := newTransport(t)
	n := 0
	for _, req := range []*http.Request{
		newRequest(t, http.MethodPost, s.addr, "{}"),
		traced(t, s.addr, func(int, textproto.MIMEHeader) error { n++; return nil }),
	} {
		if _, err := tr.RoundTrip(req); !errors.Is(err, ErrHeaderTooLarge) || !failure(t, err).Answered {
			t.Fatalf("error %v", err)
		}
	}
	if want := DefaultMaxResponseHeader / len(interim); n != want {
		t.Fatalf("%d interim answers, want %d", n, want)
	}
}
