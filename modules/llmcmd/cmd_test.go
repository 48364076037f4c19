package llmcmd

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/pflag"
)

// flags returns a command's flags as the command line would have set them.
func flags(t *testing.T, define func(*pflag.FlagSet), args ...string) caddycmd.Flags {
	t.Helper()
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	define(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return caddycmd.Flags{FlagSet: fs}
}

// TestEmptyKeys: a variable that is not set must not open the gateway to
// everybody.
func TestEmptyKeys(t *testing.T) {
	for _, name := range []string{"key", "api-key"} {
		fs := flags(t, func(fs *pflag.FlagSet) {
			fs.String("from", "", "")
			fs.StringSlice("to", nil, "")
			fs.String("key", "", "")
			fs.String("api-key", "", "")
			fs.String("admin", "", "")
			fs.Bool("open", false, "")
		}, "--to", "x:1", "--open", "--"+name, " ")
		if _, err := cmdProxy(fs); err == nil || !strings.Contains(err.Error(), "--"+name+" is empty") {
			t.Errorf("--%s: %v", name, err)
		}
	}
}

// TestDemoOnATakenPort: `make run` has another name for --from.
func TestDemoOnATakenPort(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if err := elsewhere(portIsFree(ln.Addr().String())); err == nil || !strings.Contains(err.Error(), "make run LISTEN=") {
		t.Error(err)
	}
}

// TestDrainNames: a replica may be named by its URL, and what there is not is
// said in words.
func TestDrainNames(t *testing.T) {
	var asked string
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Replica string }
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		if asked = body.Replica; asked == "nothing" {
			w.WriteHeader(http.StatusNotFound)
			io.WriteString(w, `{"error":"there is no replica \"nothing\"; GET /llmgw/replicas lists them"}`)
			return
		}
		io.WriteString(w, `{"replica":"x","state":"draining"}`)
	}))
	defer api.Close()
	k := &client{address: api.Listener.Addr().String(), out: io.Discard}
	for name, id := range map[string]string{
		"127.0.0.1:8001":              "127.0.0.1:8001",
		"http://127.0.0.1:8001":       "127.0.0.1:8001",
		"http://GPU1/":                "gpu1:80",
		"http://gpu1:8000/engines/a/": "gpu1:8000/engines/a",
		"https://gpu1:8000":           "https://gpu1:8000",
		"https://gpu1/":               "https://gpu1:443",
	} {
		if err := k.drain("drain", name); err != nil || asked != id {
			t.Errorf("%s was asked for as %s: %v", name, asked, err)
		}
	}
	err := k.drain("drain", "nothing")
	if want := "there is no replica \"nothing\"; `llmgw replicas` lists them"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	api.Close()
	if err := k.replicas(); err == nil || !strings.Contains(err.Error(), "is llmgw running? --address") || strings.Contains(err.Error(), "/llmgw/") {
		t.Errorf("without an admin API: %v", err)
	}
}
