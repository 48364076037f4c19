package llmcmd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"

	"github.com/llmgw/llmgw/agent/engine/sim"
)

// maxDemo bounds the number of simulated replicas.
const maxDemo = 64

func cmdDemo(fs caddycmd.Flags) (int, error) {
	n := fs.Int("replicas")
	if n < 1 || n > maxDemo {
		return caddy.ExitCodeFailedStartup, fmt.Errorf("--replicas %d: must be from 1 to %d", n, maxDemo)
	}
	ctx, stop := untilStopped()
	defer stop()
	var o proxyOptions
	o.from = fs.String("from")
	host, port, err := net.SplitHostPort(o.from)
	if err != nil {
		return caddy.ExitCodeFailedStartup, fmt.Errorf("--from %q: want an address such as :8080 or 127.0.0.1:8080", o.from)
	}
	if host == "" {
		host = "localhost"
	}
	// Another Caddy may have the usual port of the admin API.
	if o.admin, err = freeAddress(ctx); err != nil {
		return caddy.ExitCodeFailedStartup, err
	}
	ended := make(chan error, n)
	for range n {
		address, err := sim.Start(ctx, sim.DefaultConfig(), "127.0.0.1:0", ended)
		if err != nil {
			return caddy.ExitCodeFailedStartup, err
		}
		o.to = append(o.to, address)
	}
	if err := o.load(); err != nil {
		return caddy.ExitCodeFailedStartup, elsewhere(err)
	}
	fmt.Printf(`
llmgw serves on http://%[1]s before %[2]d simulated replicas: %[3]s
Try it:

  curl -N http://%[1]s/v1/chat/completions -H 'Content-Type: application/json' \
    -d '{"model":"sim","stream":true,"messages":[{"role":"user","content":"Hello"}]}'

See what the gateway knows of its replicas:

  %[4]s replicas --address %[5]s

Ctrl-C ends everything.
`, net.JoinHostPort(host, port), n, strings.Join(o.to, " "), os.Args[0], o.admin)
	select {
	case <-ctx.Done():
	case err := <-ended:
		return caddy.ExitCodeFailedStartup, fmt.Errorf("a simulated replica ended: %w", err)
	}
	stop()
	return caddy.ExitCodeSuccess, caddy.Stop()
}

// elsewhere says what to do about a taken port: `make run` has a name of its own
// for --from.
func elsewhere(err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%w: take another one with --from, or `make run LISTEN=127.0.0.1:9000`", err)
	}
	return err
}

// freeAddress returns a loopback address that nobody listens on.
func freeAddress(ctx context.Context) (string, error) {
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer ln.Close()
	return ln.Addr().String(), nil
}
