package llmgw

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
)

// TestNulls: a null in JSON is an error that says where, or nothing; never a crash.
func TestNulls(t *testing.T) {
	for text, want := range map[string]string{
		`{"models":[null],"admission":null}`:               "entry 0 is null",
		`{"endpoints":[null]}`:                             "entry 0 is null",
		`{"models":[{"name":"m","endpoints":[null]}]}`:     "endpoint 1 is null",
		`{"bands":{"silver":null}}`:                        "",
		`{"bands":{"mine":null}}`:                          "needs a priority and a ceiling",
		`{"models":[{"name":"m","admission":null}]}`:       "",
		`{"bands":{"a":{"priority":5000000,"ceiling":1}}}`: "priority 5000000",
	} {
		t.Run(text, func(t *testing.T) {
			ctx, cancel := caddy.NewContext(caddy.Context{Context: t.Context()})
			defer cancel()
			a := new(App)
			if err := json.Unmarshal([]byte(text), a); err != nil {
				t.Fatal(err)
			}
			err := a.Provision(ctx)
			if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("%v, want %q", err, want)
			}
			if err := a.Cleanup(); err != nil {
				t.Error(err)
			}
		})
	}
}
