package tenant

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func key(t *testing.T, k Key, secret string) *Key {
	t.Helper()
	made, err := NewKey(k, secret)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func ring(t *testing.T, keys ...*Key) *Keyring {
	t.Helper()
	r, err := NewKeyring(keys)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestNewKeyRefusesAnEmptySecret(t *testing.T) {
	for _, secret := range []string{"", " ", "\n", "\t \r\n"} {
		if _, err := NewKey(Key{Name: "a"}, secret); err == nil || !strings.Contains(err.Error(), "the key is empty") {
			t.Errorf("NewKey with %q: %v", secret, err)
		}
	}
}

func TestNewKeyringRefusesTheSameKeyTwice(t *testing.T) {
	_, err := NewKeyring([]*Key{
		key(t, Key{Name: "a"}, "sk-llmgw-hunter2"),
		key(t, Key{Name: "b"}, "sk-llmgw-other"),
		key(t, Key{Name: "c"}, "sk-llmgw-hunter2\n"),
	})
	if err == nil || err.Error() != `key "a" and key "c" are the same key` {
		t.Fatalf("error %v", err)
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Error("the error gives the secret away")
	}
}

func TestFind(t *testing.T) {
	a, b := key(t, Key{Name: "a"}, "sk-llmgw-a"), key(t, Key{Name: "b"}, "sk-llmgw-b\n")
	r := ring(t, a, b)
	if r.Len() != 2 {
		t.Errorf("%d keys", r.Len())
	}
	for secret, want := range map[string]*Key{
		"sk-llmgw-a":   a,
		"sk-llmgw-b":   b, // the line end of the file it came from is not part of it
		"sk-llmgw-c":   nil,
		"sk-llmgw-":    nil,
		"SK-LLMGW-A":   nil,
		"":             nil,
		"sk-llmgw-ab":  nil,
		"\x00":         nil,
		"sk-llmgw-a\n": nil,
	} {
		if got := r.Find(secret); got != want {
			t.Errorf("Find(%q) = %+v, want %+v", secret, got, want)
		}
	}
	none := ring(t)
	if none.Len() != 0 || none.Find("") != nil || none.Find("sk-llmgw-a") != nil {
		t.Error("an empty ring found a key")
	}
}

// The secret is not kept, so nothing that prints a key can show it.
func TestT10_KeyKeepsNoSecret(t *testing.T) {
	k := key(t, Key{Name: "a"}, "sk-llmgw-hunter2")
	if strings.Contains(string(k.digest[:]), "hunter2") {
		t.Error("the digest holds the secret")
	}
	if k.Name != "a" {
		t.Errorf("name %q", k.Name)
	}
}

func TestNewKeyCopies(t *testing.T) {
	proto := Key{Name: "proto"}
	one, two := key(t, proto, "one"), key(t, proto, "two")
	one.Name = "one"
	if two.Name != "proto" || proto.Name != "proto" {
		t.Error("two keys share what they were made from")
	}
}

func TestMayUse(t *testing.T) {
	for _, c := range []struct {
		name  string
		key   *Key
		model []string
		want  bool
	}{
		{"no key", nil, []string{"a"}, true},
		{"no list", &Key{}, []string{"a"}, true},
		{"listed", &Key{Models: []string{"a", "b"}}, []string{"b"}, true},
		{"listed by an alias", &Key{Models: []string{"fast"}}, []string{"model-7b", "small", "fast"}, true},
		{"not listed", &Key{Models: []string{"a"}}, []string{"b", "c"}, false},
		{"in another case", &Key{Models: []string{"a"}}, []string{"A"}, false},
		{"a part of a name", &Key{Models: []string{"abc"}}, []string{"ab"}, false},
		{"nothing asked", &Key{Models: []string{"a"}}, nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := c.key.MayUse(c.model...); got != c.want {
				t.Errorf("MayUse(%q) = %v", c.model, got)
			}
		})
	}
}

// Of any ring each secret finds its own key, and nothing else finds any.
func TestKeyringProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		secrets := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-zA-Z0-9_-]{1,40}`), 0, 20, rapid.ID[string]).Draw(t, "secrets")
		byName := make(map[string]*Key)
		var keys []*Key
		for _, s := range secrets {
			k, err := NewKey(Key{Name: s}, s)
			if err != nil {
				t.Fatal(err)
			}
			keys = append(keys, k)
			byName[s] = k
		}
		r, err := NewKeyring(keys)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range append(secrets, rapid.String().Draw(t, "other")) {
			if got := r.Find(s); got != byName[s] {
				t.Fatalf("Find(%q) = %+v", s, got)
			}
		}
	})
}

func BenchmarkFind(b *testing.B) {
	var keys []*Key
	for i := range 100 {
		k, err := NewKey(Key{}, strings.Repeat("k", i+1))
		if err != nil {
			b.Fatal(err)
		}
		keys = append(keys, k)
	}
	r, err := NewKeyring(keys)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if r.Find("sk-llmgw-0123456789abcdef0123456789abcdef") != nil {
			b.Fatal("found")
		}
	}
}
