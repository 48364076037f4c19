package llmcmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	// The Caddyfile adapter: these commands write a Caddyfile.
	_ "github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
)

// proxyOptions are what a gateway without a config file needs to know.
type proxyOptions struct {
	from, key, apiKey      string
	to                     []string
	open, accessLog, debug bool
	admin                  string // address of the admin API, "" for Caddy's default
}

// config writes the Caddyfile that means the same.
func (o proxyOptions) config() ([]byte, error) {
	if len(o.to) == 0 {
		return nil, errors.New("--to is required: the address of an engine, such as gpu1:8000")
	}
	for _, address := range append(o.to, o.from, o.admin) {
		if strings.ContainsAny(address, " \t\r\n{}\"`\\#") {
			return nil, fmt.Errorf("%q is not an address", address)
		}
	}
	var b strings.Builder
	b.WriteString("{\n")
	if o.admin != "" {
		fmt.Fprintf(&b, "\tadmin %s\n", o.admin)
	}
	b.WriteString("\tpersist_config off\n\tgrace_period 30s\n\tlog {\n" + LogFormat + "\t}\n")
	if o.debug {
		b.WriteString("\tdebug\n")
	}
	b.WriteString("\tllmgw {\n\t\tendpoint")
	for _, address := range o.to {
		b.WriteString(" " + address)
	}
	if o.apiKey != "" {
		fmt.Fprintf(&b, " {\n\t\t\tapi_key %s\n\t\t}", quote(o.apiKey))
	}
	b.WriteString("\n\t}\n}\n" + siteAddress(o.from) + " {\n")
	if o.accessLog {
		b.WriteString("\tlog\n")
	}
	b.WriteString("\tllm {\n")
	if o.key != "" {
		fmt.Fprintf(&b, "\t\tkey %s\n", quote(o.key))
	}
	if o.open {
		b.WriteString("\t\topen\n")
	}
	b.WriteString("\t}\n}\n")
	return []byte(b.String()), nil
}

// LogFormat keeps keys out of the log, in the headers that Caddy does not know to
// hold any and in queries. It belongs into the block `log` of the global options.
const LogFormat = `		format filter {
			request>headers>X-Api-Key delete
			request>headers>Api-Key delete
			request>headers>Sec-Websocket-Protocol delete
			request>uri query {
				delete key
				delete api_key
				delete api-key
				delete token
				delete access_token
			}
		}
`

// siteAddress makes a Caddyfile address of --from: an address with a host
// listens there and speaks plain HTTP, unless it is a URL.
func siteAddress(from string) string {
	if strings.Contains(from, "://") {
		return from
	}
	return "http://" + from
}

// quote makes one Caddyfile token of a text: in backticks all but a backtick
// stands for itself.
func quote(s string) string {
	if strings.Contains(s, "`") {
		return `"` + strings.ReplaceAll(s, `"`, `\"`) + `"`
	}
	return "`" + s + "`"
}

// load makes Caddy serve.
func (o proxyOptions) load() error {
	text, err := o.config()
	if err != nil {
		return err
	}
	adapter := caddyconfig.GetAdapter("caddyfile")
	cfg, warnings, err := adapter.Adapt(caddyfile.Format(text), map[string]any{"filename": "command line"})
	if err != nil {
		return err
	}
	for _, w := range warnings {
		caddy.Log().Warn(w.Message)
	}
	if cfg, err = listenOn(cfg, o.from); err != nil {
		return err
	}
	if err := portIsFree(o.from); err != nil {
		return err
	}
	return caddy.Load(cfg, true)
}

// portIsFree refuses an address that somebody serves on already. Caddy would
// share the port with another Caddy, and each would get some of the requests.
func portIsFree(from string) error {
	if strings.Contains(from, "://") {
		return nil
	}
	ln, err := net.Listen("tcp", from) //nolint:noctx // it does not wait
	if err != nil {
		return fmt.Errorf("--from %s: %w", from, err)
	}
	return ln.Close()
}

// listenOn makes the one server listen on the host of --from: in a Caddyfile
// the host of an address is what clients ask for, not where to listen.
func listenOn(cfg []byte, from string) ([]byte, error) {
	if strings.Contains(from, "://") {
		return cfg, nil
	}
	host, port, err := net.SplitHostPort(from)
	if err != nil {
		return nil, fmt.Errorf("--from %q: want an address such as :8080 or 127.0.0.1:8080", from)
	}
	var c struct {
		Admin   json.RawMessage            `json:"admin,omitempty"`
		Logging json.RawMessage            `json:"logging,omitempty"`
		Apps    map[string]json.RawMessage `json:"apps"`
	}
	var h struct {
		GracePeriod json.RawMessage                       `json:"grace_period,omitempty"`
		Servers     map[string]map[string]json.RawMessage `json:"servers"`
	}
	if err := errors.Join(json.Unmarshal(cfg, &c), json.Unmarshal(c.Apps["http"], &h)); err != nil {
		return nil, err
	}
	for _, s := range h.Servers {
		s["listen"] = caddyconfig.JSON([]string{net.JoinHostPort(host, port)}, nil)
		var routes []map[string]json.RawMessage
		if err := json.Unmarshal(s["routes"], &routes); err != nil {
			return nil, err
		}
		for _, r := range routes {
			delete(r, "match")
		}
		s["routes"] = caddyconfig.JSON(routes, nil)
	}
	c.Apps["http"] = caddyconfig.JSON(h, nil)
	return json.Marshal(c)
}

func cmdProxy(fs caddycmd.Flags) (int, error) {
	to, err := fs.GetStringSlice("to")
	if err != nil {
		return caddy.ExitCodeFailedStartup, err
	}
	for _, name := range []string{"key", "api-key"} {
		// A variable that is not set must not open the gateway to everybody.
		if fs.Changed(name) && strings.TrimSpace(fs.String(name)) == "" {
			return caddy.ExitCodeFailedStartup, fmt.Errorf("--%s is empty: is the variable that it comes from set? Leave it out to have none", name)
		}
	}
	o := proxyOptions{
		from: fs.String("from"), to: to, admin: fs.String("admin"), key: fs.String("key"), apiKey: fs.String("api-key"),
		open: fs.Bool("open"), accessLog: fs.Bool("access-log"), debug: fs.Bool("debug"),
	}
	caddy.TrapSignals()
	if err := o.load(); err != nil {
		return caddy.ExitCodeFailedStartup, err
	}
	fmt.Fprintf(os.Stderr, "llmgw serves on %s\n", o.from)
	select {}
}
