package llmcmd

import (
	"fmt"
	"os"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/llmgw/llmgw/agent/engine/sim"
)

func registerSim() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "sim-engine",
		Usage: "[--listen <address>] [--model <name> ...] [...]",
		Short: "Runs a simulated engine: an OpenAI-compatible fake of vLLM that needs no GPU",
		Long: `
Serves the OpenAI API with made-up text, with the timing, the queue, the KV
cache, the metrics and the errors of vLLM. Faults can be switched at run time
on /sim/faults.
`,
		CobraFunc: func(c *cobra.Command) {
			cfg := sim.DefaultConfig()
			listen := c.Flags().String("listen", "127.0.0.1:8000", "Address on which to serve; port 0 takes a free one")
			cfg.Flags(c.Flags())
			c.RunE = caddycmd.WrapCommandFuncForCobra(func(caddycmd.Flags) (int, error) {
				return runSim(cfg, *listen)
			})
		},
	})
}

func runSim(cfg sim.Config, listen string) (int, error) {
	ctx, stop := untilStopped()
	defer stop()
	ended := make(chan error, 1)
	address, err := sim.Start(ctx, cfg, listen, ended)
	if err != nil {
		return caddy.ExitCodeFailedStartup, err
	}
	fmt.Fprintf(os.Stderr, "simulated engine on http://%s\n", address)
	if err := <-ended; err != nil {
		return caddy.ExitCodeFailedQuit, err
	}
	return caddy.ExitCodeSuccess, nil
}
