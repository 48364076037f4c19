package llmtransport

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/llmgw/llmgw/modules/internal/exchange"
	"github.com/llmgw/llmgw/modules/llmgw"
)

func init() {
	caddy.RegisterModule(new(Proxy))
	httpcaddyfile.RegisterHandlerDirective("llm_proxy", parseProxy)
	httpcaddyfile.RegisterDirectiveOrder("llm_proxy", httpcaddyfile.Before, "reverse_proxy")
}

// Proxy sends a request to the replica that the scheduler picks, and to another
// one as long as that may help, and passes the answer on as it comes. It does
// what `reverse_proxy` with `dynamic llm` and `transport llm` does, for less.
//
// WebSockets it leaves to the next handler, which should be such a
// `reverse_proxy`.
type Proxy struct {
	app       *llmgw.App
	transport Transport
}

// CaddyModule returns the Caddy module information.
func (*Proxy) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.llm_proxy",
		New: func() caddy.Module { return new(Proxy) },
	}
}

// Provision sets the handler up.
func (p *Proxy) Provision(ctx caddy.Context) (err error) {
	if p.app, err = llmgw.From(ctx); err != nil {
		return err
	}
	keepConns(ctx)
	return p.transport.Provision(ctx)
}

// Cleanup closes idle connections.
func (p *Proxy) Cleanup() error { return p.transport.Cleanup() }

// ServeHTTP implements caddyhttp.MiddlewareHandler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	x := p.app.Join(r)
	if x.Route.Kind == exchange.KindUpgrade {
		return next.ServeHTTP(w, r)
	}
	res, err := p.ask(x, r)
	if err != nil {
		return llmgw.Refuse(x, err)
	}
	pass(w, r, res)
	return nil
}

// ask gets an answer from one replica or another.
func (p *Proxy) ask(x *exchange.Exchange, r *http.Request) (*http.Response, error) {
	if err := x.Read(r); err != nil {
		return nil, err
	}
	if err := x.Resolve(); err != nil {
		return nil, err
	}
	out := r.WithContext(r.Context())
	out.URL, out.Header, out.Close = new(url.URL), outgoing(x, r), false
	for {
		if x.PickOrWait(r.Context()) == nil || !x.Direct(out) {
			if err := x.Err(); err != nil {
				return nil, err
			}
			return nil, context.Canceled // it has ended under us
		}
		out.URL.Host = x.Endpoint().Replica.URL.Host
		res, retry, err := p.transport.attempt(x, out)
		if !retry {
			return res, err
		}
	}
}

// outgoing makes the header of the request to a replica, which learns of the
// client what a reverse proxy tells.
func outgoing(x *exchange.Exchange, r *http.Request) http.Header {
	h := x.Outgoing(r.Header)
	trusted, _ := caddyhttp.GetVar(r.Context(), caddyhttp.TrustedProxyVarKey).(bool)
	// Of an untrusted client's words nothing is passed on.
	said := func(name string) string {
		if trusted {
			return strings.Join(h[name], ", ")
		}
		return ""
	}
	last := func(name string) string {
		if v := h[name]; trusted && len(v) > 0 {
			return v[len(v)-1]
		}
		return ""
	}
	tell := func(name, value string) {
		if value == "" {
			delete(h, name)
			return
		}
		h[name] = []string{value}
	}
	chain := said("X-Forwarded-For")
	if peer, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		peer, _, _ = strings.Cut(peer, "%") // an IPv6 zone means nothing elsewhere
		if chain != "" {
			chain += ", "
		}
		chain += peer
	}
	proto := "http"
	if r.TLS != nil {
		proto = "https"
	}
	tell("X-Forwarded-For", chain)
	tell("X-Forwarded-Proto", cmp.Or(last("X-Forwarded-Proto"), proto))
	tell("X-Forwarded-Host", cmp.Or(last("X-Forwarded-Host"), r.Host))
	via := strconv.Itoa(r.ProtoMajor) + "." + strconv.Itoa(r.ProtoMinor) + " Caddy"
	h["Via"] = append(slices.Clip(h["Via"]), via)
	if h["User-Agent"] == nil {
		h["User-Agent"] = []string{""} // Go would name itself
	}
	if r.TLS != nil && !r.TLS.HandshakeComplete {
		h["Early-Data"] = []string{"1"} // RFC 8470: it may be a replay
	}
	return h
}

// hopByHop are the headers of an answer that belong to the connection that it
// came over.
var hopByHop = []string{"Connection", "Proxy-Connection", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Alt-Svc", "Proxy-Authenticate"}

// copyBuffers are what bytes go through on their way to clients.
var copyBuffers = sync.Pool{New: func() any { return new([16 << 10]byte) }}

// pass writes an answer to the client. What cannot be passed whole it aborts, by
// the panic that Go's server has for that.
func pass(w http.ResponseWriter, r *http.Request, res *http.Response) {
	defer res.Body.Close()
	h := w.Header()
	delete(h, "Server") // it is the engine's answer
	exchange.StripListed(res.Header, res.Header["Connection"])
	for _, name := range hopByHop {
		delete(res.Header, name)
	}
	for name, values := range res.Header {
		if there := h[name]; len(there) > 0 { // said by a handler before this one
			values = slices.Concat(there, values)
		}
		h[name] = values
	}
	w.WriteHeader(res.StatusCode)
	var dst io.Writer = w
	if res.ContentLength < 0 { // it comes piece by piece
		pieces := newEvents(w, r, res.StatusCode)
		_ = pieces.flush() // a write will tell what is wrong
		dst = pieces
	}
	if err := relay(dst, res.Body); err != nil {
		_ = http.NewResponseController(w).Flush() // what there is of it
		panic(http.ErrAbortHandler)
	}
}

// relay copies src to dst, as it comes. A stream of events needs no buffer for it:
// it has one, and there may be thousands of streams.
func relay(dst io.Writer, src io.Reader) error {
	if a, ok := src.(*attempt); ok && a.tap != nil {
		return drain(dst, a.next)
	}
	buf := copyBuffers.Get().(*[16 << 10]byte)
	defer copyBuffers.Put(buf)
	return drain(dst, func() ([]byte, error) {
		n, err := src.Read(buf[:])
		return buf[:n], err
	})
}

// drain writes to dst what next returns, until its error.
func drain(dst io.Writer, next func() ([]byte, error)) error {
	for {
		b, err := next()
		if len(b) > 0 {
			if _, err := dst.Write(b); err != nil {
				return err
			}
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

// UnmarshalCaddyfile takes no options:
//
//	llm_proxy
func (p *Proxy) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // llm_proxy
	if d.NextArg() {
		return d.ArgErr()
	}
	if d.NextBlock(0) {
		return d.Errf("unknown llm_proxy option %q", d.Val())
	}
	return nil
}

func parseProxy(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	p := new(Proxy)
	return p, p.UnmarshalCaddyfile(h.Dispenser)
}

// Interface guards.
var (
	_ caddy.Provisioner           = (*Proxy)(nil)
	_ caddy.CleanerUpper          = (*Proxy)(nil)
	_ caddyhttp.MiddlewareHandler = (*Proxy)(nil)
	_ caddyfile.Unmarshaler       = (*Proxy)(nil)
)
