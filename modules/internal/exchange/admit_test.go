package exchange

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/internal/tenant"
)

func TestAdmitted(t *testing.T) {
	wish := Wishes{Replica: "gpu1:8000", Profile: "debug", Deadline: time.Second}
	none := Wishes{Deadline: time.Second}
	for _, c := range []struct {
		name         string
		key          *tenant.Key
		anonymous    bool
		debugHeaders bool
		in, want     Wishes
		class        error
	}{
		{"a stranger", nil, false, false, wish, wish, ErrDenied},
		{"a stranger on a site with debug headers", nil, false, true, wish, wish, ErrDenied},
		{"a client that needs no key", nil, true, false, wish, none, nil},
		{"one that may set debug headers", nil, true, true, wish, wish, nil},
		{"a key", &tenant.Key{}, false, false, wish, none, nil},
		{"a key on a site with debug headers: its own permissions count", &tenant.Key{}, false, true, wish, none, nil},
		{"a debug key", &tenant.Key{Debug: true}, false, false, wish, wish, nil},
		{
			"a key that may choose the profile",
			&tenant.Key{Profiles: []string{"chat", "debug"}},
			false, false, wish,
			Wishes{Profile: "debug", Deadline: time.Second},
			nil,
		},
		{
			"a key that may choose another profile",
			&tenant.Key{Profiles: []string{"chat"}},
			false, false, wish, none, nil,
		},
		{"no wishes", &tenant.Key{Debug: true}, false, false, Wishes{}, Wishes{}, nil},
		{"a profile that is not there", &tenant.Key{Debug: true}, false, false, Wishes{Profile: "fast"}, Wishes{Profile: "fast"}, ErrRequest},
		{
			"a profile that is not there is nothing that others may find out",
			&tenant.Key{},
			false, false,
			Wishes{Profile: "fast"},
			Wishes{},
			nil,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			x := w.open(t, newRequest(chatBody))
			x.Key, x.Anonymous, x.Options.DebugHeaders, x.Wishes = c.key, c.anonymous, c.debugHeaders, c.in
			err := x.Admitted()
			if c.class == nil && err != nil || !errors.Is(err, c.class) {
				t.Errorf("error %v, want a %v", err, c.class)
			}
			if x.Wishes != c.want {
				t.Errorf("wishes %+v, want %+v", x.Wishes, c.want)
			}
		})
	}
}

// Nothing of a stranger's body is read.
func TestStrangersBodyIsNotRead(t *testing.T) {
	w := newWorld(t, "gpu1:8000")
	r := newRequest(chatBody)
	r.Body = readFunc(func([]byte) (int, error) {
		t.Error("the body of a stranger is read")
		return 0, errors.New("read")
	})
	x := w.open(t, r)
	x.Anonymous = false
	if err := x.Read(r); !errors.Is(err, ErrDenied) || Answer(err).Status != http.StatusUnauthorized {
		t.Errorf("error %v", err)
	}
	x.End()
	w.atRest(t)
}

func TestResolve(t *testing.T) {
	w := newWorld(t, "gpu1:8000")
	for name, want := range map[string]string{
		"m": "m", "alias": "m", "secret": "secret", "hidden": "secret", "M": "", "nope": "",
	} {
		x := w.open(t, newRequest(chatBody))
		x.Requested = name
		err := x.Resolve()
		if want == "" {
			if !errors.Is(err, ErrModel) || !errors.Is(x.Err(), err) || x.Model != nil || x.ModelName() != "_other" {
				t.Errorf("%q: %v, model %q", name, err, x.ModelName())
			}
			continue
		}
		if err != nil || x.ModelName() != want {
			t.Errorf("%q: %v, model %q", name, err, x.ModelName())
		}
		// Once resolved it stays, whatever becomes of the name.
		x.Requested = "nope"
		if err := x.Resolve(); err != nil || x.Model.Name != want {
			t.Errorf("%q again: %v", name, err)
		}
	}
}

// A model that a key may not use is answered like one that does not exist, to
// the letter, also while some models are not known yet.
func TestForbiddenModelLooksUnknown(t *testing.T) {
	for _, incomplete := range []bool{false, true} {
		w := newWorld(t)
		if incomplete {
			w.serve(t, []*catalog.Endpoint{w.endpoint(t, "gpu9:8000")},
				&catalog.Model{Name: "m", Aliases: []string{"alias"}}, &catalog.Model{Name: "secret"})
		}
		key := mustKey(t, tenant.Key{Models: []string{"alias", "later"}})
		answer := func(name string) string {
			x := w.open(t, newRequest(chatBody))
			x.Key, x.Requested = key, name
			err := x.Resolve()
			if err == nil {
				return "served by " + x.Model.Name
			}
			e := Answer(err)
			return strings.ReplaceAll(fmt.Sprint(e.Status, string(e.AppendJSON(nil, false)), e.RetryAfter), name, "NAME")
		}
		if forbidden, missing := answer("secret"), answer("nope"); forbidden != missing || !strings.HasPrefix(forbidden, "404") {
			t.Errorf("incomplete: %v\nforbidden %s\nmissing   %s", incomplete, forbidden, missing)
		}
		// Its model under either of its names.
		if a, b := answer("m"), answer("alias"); a != "served by m" || b != a {
			t.Errorf("m: %s, alias: %s", a, b)
		}
		if later := answer("later"); strings.HasPrefix(later, "503") != incomplete {
			t.Errorf("incomplete: %v: a model that the key may use and that may turn up: %s", incomplete, later)
		}
	}
}

// While a replica has still to be asked what it serves, an unknown model may
// turn up: the client shall come back.
func TestResolveWhileModelsAreLearned(t *testing.T) {
	w := newWorld(t)
	e := w.endpoint(t, "gpu1:8000")
	w.serve(t, []*catalog.Endpoint{e})
	resolve := func(name string) *Exchange {
		x := w.open(t, newRequest(chatBody))
		x.Requested = name
		_ = x.Resolve()
		return x
	}
	err := resolve("m").Err()
	if !errors.Is(err, ErrUnavailable) || Answer(err).RetryAfter != retryUnavailable {
		t.Errorf("before: %v", err)
	}
	e.Replica.SetModels([]string{"m"})
	w.Catalog.Relearn()
	if x := resolve("m"); x.Err() != nil || x.Model == nil {
		t.Errorf("after: %v", x.Err())
	}
	if err := resolve("nope").Err(); !errors.Is(err, ErrModel) {
		t.Errorf("another model after: %v", err)
	}
}

// A model's name comes from the client: the error shows a part of it that is
// short and whole.
func TestT14_LongModelNameInTheError(t *testing.T) {
	w := newWorld(t)
	x := w.open(t, newRequest(chatBody))
	x.Requested = strings.Repeat("ä", 500) + "\n"
	err := x.Resolve()
	if e := Answer(err); len(e.Message) > 250 || strings.Contains(e.Message, "\n") || !strings.Contains(e.Message, "ä…`") {
		t.Errorf("message %q", e.Message)
	}
}

// A routing profile comes from the client's wish, else the key, else the model,
// else the default.
func TestProfileOfARequest(t *testing.T) {
	for _, c := range []struct {
		name, wish, key, model string
		want                   string
	}{
		{"default", "", "", "", "chat"},
		{"model", "", "", "debug", "debug"},
		{"key before model", "", "chat", "debug", "chat"},
		{"wish before key", "debug", "chat", "chat", "debug"},
		{"a name that is gone with a reload is the default", "", "", "gone", "chat"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, "gpu1:8000")
			x := w.ask(t, chatBody)
			x.Wishes.Profile = c.wish
			if c.key != "" {
				x.Key = &tenant.Key{Profile: c.key}
			}
			x.Model.Profile = c.model
			if got := x.profile().Name; got != c.want {
				t.Errorf("profile %q, want %q", got, c.want)
			}
		})
	}
}

func TestSessionOfARequest(t *testing.T) {
	w := newWorld(t, "gpu1:8000")
	for _, c := range []struct {
		name, header, body, want string
		off                      bool
	}{
		{"none", "", chatBody, "", false},
		{"a header", "s-1", chatBody, "s-1", false},
		{"OpenAI's user", "", `{"model":"m","user":"u-1","messages":[]}`, "u-1", false},
		{"the header before the user", "s-1", `{"model":"m","user":"u-1","messages":[]}`, "s-1", false},
		{"turned off", "s-1", `{"model":"m","user":"u-1","messages":[]}`, "", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRequest(c.body)
			if c.header != "" {
				r.Header.Set("X-Session-Id", c.header)
			}
			x := w.open(t, r)
			if err := errors.Join(x.Read(r), x.Resolve()); err != nil {
				t.Fatal(err)
			}
			if c.off {
				off := *x.Model
				off.SessionLoad = 0
				x.serving = &off
			}
			if got := x.session(); got != c.want {
				t.Errorf("session %q, want %q", got, c.want)
			}
		})
	}
}

func TestCredentialsAreStripped(t *testing.T) {
	h := http.Header{"Accept": {"a"}, "X-Session-Id": {"s"}}
	for _, name := range []string{"Authorization", "X-Api-Key", "Api-Key", "Cookie", "Proxy-Authorization"} {
		h.Set(name, "sk-llmgw-hunter2")
	}
	StripCredentials(h)
	var left []string
	for name := range h {
		left = append(left, name)
	}
	slices.Sort(left)
	if want := []string{"Accept", "X-Session-Id"}; !slices.Equal(left, want) {
		t.Errorf("left %q, want %q", left, want)
	}
}
