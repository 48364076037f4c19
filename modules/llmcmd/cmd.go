// Package llmcmd adds the gateway's subcommands to Caddy's command line.
package llmcmd

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"
)

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "proxy",
		Usage: "--to <address> [--to <address> ...] [--from <address>] [--key <key>] [--api-key <key>] [--open] [--admin <address>] [--access-log] [--debug]",
		Short: "Puts the gateway in front of engines, without a config file",
		Long: `
Serves the OpenAI API on --from and sends each request to the best of the --to
engines. What models these serve is read from their /v1/models: now, whenever
they come back, every 30 s, and 5 s after an attempt that failed.

Without --key only clients that come over loopback (127.0.0.1, ::1) are served,
unless --open is given. The keys may be placeholders such as {env.LLMGW_KEY}.
`,
		CobraFunc: func(c *cobra.Command) {
			c.Flags().StringP("from", "f", ":8080", "Address on which to serve")
			c.Flags().StringSliceP("to", "t", nil, "Engine address: host:port, or a URL")
			c.Flags().String("key", "", "Key that clients must send")
			c.Flags().String("api-key", "", "Key that the engines ask for")
			c.Flags().Bool("open", false, "Serve clients without a key that do not come over loopback")
			c.Flags().String("admin", "", "Address of the admin API, or off (default localhost:2019)")
			c.Flags().Bool("access-log", false, "Log each request")
			c.Flags().BoolP("debug", "v", false, "Log more")
			c.RunE = caddycmd.WrapCommandFuncForCobra(cmdProxy)
		},
	})
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "demo",
		Usage: "[--from <address>] [--replicas <number>]",
		Short: "Runs the gateway before simulated replicas",
		Long: `
Starts a few simulated engines, which need no GPU, and the gateway before them,
and prints a command to try. Everything ends with Ctrl-C.
`,
		CobraFunc: func(c *cobra.Command) {
			c.Flags().StringP("from", "f", "127.0.0.1:8080", "Address on which to serve")
			c.Flags().Int("replicas", 3, "Number of simulated replicas, 1 to 64")
			c.RunE = caddycmd.WrapCommandFuncForCobra(cmdDemo)
		},
	})
	registerSim()
	registerOperator()
}

// untilStopped returns a context that ends with the first SIGINT or SIGTERM. A
// second one ends the process at once.
func untilStopped() (context.Context, context.CancelFunc) {
	return signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
}
