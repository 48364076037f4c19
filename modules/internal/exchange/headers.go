package exchange

import (
	"encoding/hex"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// The request headers that a client may set; all others that begin with
// x-llmgw- are removed, however they are spelt.
const (
	HeaderReplica  = "X-Llmgw-Replica"
	HeaderProfile  = "X-Llmgw-Profile"
	HeaderDeadline = "X-Llmgw-Deadline-Ms"
)

// maxWish bounds the value of a header that is kept.
const maxWish = 256

// TakeWishes reads the headers that a client may set and removes all that
// begin with x-llmgw-, so that nobody behind can mistake them for the
// gateway's own. A header that came twice is ignored: which one counts is not
// for us to guess. It refuses a deadline that is not a number of milliseconds.
func TakeWishes(h http.Header) (Wishes, error) {
	one := func(name string) string {
		if v := h[name]; len(v) == 1 && len(v[0]) <= maxWish {
			return v[0]
		}
		return ""
	}
	w := Wishes{Replica: one(HeaderReplica), Profile: one(HeaderProfile)}
	deadline := one(HeaderDeadline)
	StripWishes(h)
	if deadline != "" {
		ms, err := strconv.ParseInt(deadline, 10, 32)
		if err != nil || ms <= 0 {
			return w, Fail(ErrRequest, "%s must be a whole number of milliseconds above 0", strings.ToLower(HeaderDeadline))
		}
		w.Deadline = time.Duration(ms) * time.Millisecond
	}
	return w, nil
}

// StripWishes removes all headers that begin with x-llmgw-, also where an
// underscore stands for the hyphen: many servers behind take one for the other.
func StripWishes(h http.Header) {
	for name := range h {
		if reserved(name) {
			delete(h, name)
		}
	}
}

func reserved(name string) bool {
	const prefix = "x-llmgw-"
	if len(name) < len(prefix) {
		return false
	}
	for i := range len(prefix) {
		c := name[i]
		switch {
		case c == '_':
			c = '-'
		case c >= 'A' && c <= 'Z':
			c |= 0x20
		}
		if c != prefix[i] {
			return false
		}
	}
	return true
}

// NewID returns a new request id: unique, not secret.
func NewID() string {
	var b [12]byte
	hi, lo := rand.Uint64(), rand.Uint32()
	for i := range 8 {
		b[i] = byte(hi >> (8 * i))
	}
	for i := range 4 {
		b[8+i] = byte(lo >> (8 * i))
	}
	const prefix = "req_"
	var id [len(prefix) + 2*len(b)]byte
	copy(id[:], prefix)
	hex.Encode(id[len(prefix):], b[:])
	return string(id[:])
}

// CleanID returns a client's own request id if it is fit for logs and headers:
// up to 128 letters, digits, and `-_.:`. Otherwise it returns "".
func CleanID(id string) string {
	if len(id) > 128 {
		return ""
	}
	for i := range len(id) {
		c := id[i]
		letter := c|0x20 >= 'a' && c|0x20 <= 'z'
		if !letter && (c < '0' || c > '9') && !strings.ContainsRune("-_.:", rune(c)) {
			return ""
		}
	}
	return id
}

// clip shortens a client's text for a message, to n bytes of whole characters.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

// Outgoing returns the header of a client's request that replicas may see, in a
// map of its own with room for a few more entries. Values are shared with in, so
// they must not be changed. What is between the client and the gateway is left
// out: credentials, wishes, and what belongs to the connection (RFC 9110, section
// 7.6.1).
func (x *Exchange) Outgoing(in http.Header) http.Header {
	out := make(http.Header, min(len(in), 8))
	for name, values := range in {
		if !own(name) && !reserved(name) {
			out[name] = values
		}
	}
	StripListed(out, in["Connection"])
	out["X-Request-Id"] = []string{x.ID}
	return out
}

// StripListed removes the headers that a Connection header names.
func StripListed(h http.Header, connection []string) {
	for _, v := range connection {
		for name := range strings.SplitSeq(v, ",") {
			delete(h, http.CanonicalHeaderKey(strings.TrimSpace(name)))
		}
	}
}

// own reports whether a header is for the gateway, or said by it to replicas in
// its own words.
func own(name string) bool {
	switch name {
	case "Connection", "Proxy-Connection", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Expect",
		"Accept-Encoding", "Content-Length", "X-Request-Id":
		return true
	}
	return slices.Contains(credentials, name)
}
