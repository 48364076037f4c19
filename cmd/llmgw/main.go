// Command llmgw is Caddy with its standard modules and the gateway's.
package main

import (
	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/llmgw/llmgw"
)

func main() {
	caddy.CustomBinaryName = "llmgw"
	caddycmd.Main()
}
