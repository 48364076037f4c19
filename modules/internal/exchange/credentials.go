package exchange

import (
	"net/http"
	"slices"
	"strings"
)

// credentials are the request headers that may hold a client's key.
var credentials = []string{"Authorization", "X-Api-Key", "Api-Key", "X-Goog-Api-Key", "Cookie", "Proxy-Authorization"}

// StripCredentials removes from h whatever may hold the client's key: it is
// for the gateway, and no engine's business.
func StripCredentials(h http.Header) {
	for _, name := range credentials {
		delete(h, name)
	}
	if h[subprotocols] == nil {
		return
	}
	var kept []string
	for _, p := range listed(h[subprotocols]) {
		if !strings.HasPrefix(p, subprotocolKey) {
			kept = append(kept, p)
		}
	}
	if delete(h, subprotocols); len(kept) > 0 {
		h[subprotocols] = []string{strings.Join(kept, ", ")}
	}
}

// OpenAI's clients in browsers, which can set no other header for a WebSocket,
// send their key as a subprotocol.
const (
	subprotocols   = "Sec-Websocket-Protocol"
	subprotocolKey = "openai-insecure-api-key."
)

// SubprotocolKey returns the key that is given as a WebSocket's subprotocol, or
// "".
func SubprotocolKey(h http.Header) string {
	for _, p := range listed(h[subprotocols]) {
		if key, ok := strings.CutPrefix(p, subprotocolKey); ok {
			return key
		}
	}
	return ""
}

// listed returns the members of a header that is a list.
func listed(values []string) (all []string) {
	for _, v := range values {
		for p := range strings.SplitSeq(v, ",") {
			all = append(all, strings.TrimSpace(p))
		}
	}
	return all
}

// secretWords are in the names of a query's parameters that may hold a key.
var secretWords = []string{"key", "token", "secret", "auth", "password"}

// namesSecret reports whether a query's parameter may hold a client's key.
func namesSecret(name string) bool {
	name = strings.ToLower(name)
	return slices.ContainsFunc(secretWords, func(s string) bool { return strings.Contains(name, s) })
}
