// Command llmgw is Caddy with its standard modules and the gateway's.
package main

import (
	"runtime/debug"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/llmgw/llmgw"
)

func main() {
	caddy.CustomBinaryName = "llmgw"
	caddy.CustomVersion = "llmgw " + version() + ", Caddy" // Caddy puts its own behind it
	caddy.CustomLongDescription = `llmgw is an OpenAI-compatible gateway in front of vLLM, SGLang and llama.cpp
replicas, built on Caddy: all of Caddy's commands and modules are here too.

To try it without a GPU:

	$ llmgw demo

In front of engines of your own, without a config file:

	$ llmgw proxy --to gpu1:8000 --to gpu2:8000

With a Caddyfile in the current directory:

	$ llmgw run`
	caddycmd.Main()
}

// version is that of the module which this binary was built from.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
