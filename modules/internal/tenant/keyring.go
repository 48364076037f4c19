// Package tenant knows who a client is and what it may do.
package tenant

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Key is one API key and its permissions. Immutable. The secret itself is not
// kept.
type Key struct {
	// Name identifies the key in logs; it is not secret.
	Name string
	// Models are the names and aliases that it may use; empty means all.
	Models []string
	// Profile is its routing profile; "" leaves it to the model.
	Profile string
	// Profiles are the routing profiles that it may choose by header.
	Profiles []string
	// Band is the band of its requests; "" is the default one. Weight is how much of
	// it the key gets beside others, 1 is normal, 0 is 1.
	Band   string
	Weight float64
	// Debug lets it pin a replica and choose any routing profile.
	Debug bool

	digest [sha256.Size]byte
}

// NewKey returns a key with the given secret. White space around it, such as
// the line end of the file that it comes from, is no part of it: a header could
// not carry it. An empty secret is refused.
func NewKey(k Key, secret string) (*Key, error) {
	secret = strings.TrimSpace(secret)
	if secret == "" {
		return nil, errors.New("the key is empty: is the environment variable or file that it comes from set?")
	}
	k.digest = sha256.Sum256([]byte(secret))
	return &k, nil
}

// MayUse reports whether the key may use a model under any of these names. A
// nil key, a client that needs none, may use all.
func (k *Key) MayUse(names ...string) bool {
	if k == nil || len(k.Models) == 0 {
		return true
	}
	return slices.ContainsFunc(names, func(n string) bool { return slices.Contains(k.Models, n) })
}

// Keyring is a set of keys. Immutable.
type Keyring struct{ keys []*Key }

// NewKeyring returns a ring of the keys. Two keys with one secret are refused,
// since only one of them could ever match.
func NewKeyring(keys []*Key) (*Keyring, error) {
	for i, k := range keys {
		for _, other := range keys[:i] {
			if subtle.ConstantTimeCompare(k.digest[:], other.digest[:]) == 1 {
				return nil, fmt.Errorf("key %q and key %q are the same key", other.Name, k.Name)
			}
		}
	}
	return &Keyring{keys: keys}, nil
}

// Len returns the number of keys.
func (r *Keyring) Len() int { return len(r.keys) }

// Find returns the key with the given secret, or nil. Its time depends on the
// number of keys and the length of the secret presented, and on nothing else.
func (r *Keyring) Find(secret string) *Key {
	digest := sha256.Sum256([]byte(secret))
	var found *Key
	for _, k := range r.keys {
		if subtle.ConstantTimeCompare(k.digest[:], digest[:]) == 1 {
			found = k
		}
	}
	return found
}
