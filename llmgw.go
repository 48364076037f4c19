// Package llmgw is the plugin that `xcaddy build --with github.com/llmgw/llmgw`
// puts into Caddy: it imports all of the gateway's modules and holds nothing
// itself.
package llmgw

import (
	// The gateway's modules register themselves.
	_ "github.com/llmgw/llmgw/modules/llmadmin"
	_ "github.com/llmgw/llmgw/modules/llmadmission"
	_ "github.com/llmgw/llmgw/modules/llmapi"
	_ "github.com/llmgw/llmgw/modules/llmcmd"
	_ "github.com/llmgw/llmgw/modules/llmgw"
	_ "github.com/llmgw/llmgw/modules/llmkeys"
	_ "github.com/llmgw/llmgw/modules/llmselect"
	_ "github.com/llmgw/llmgw/modules/llmtransport"
	_ "github.com/llmgw/llmgw/modules/llmupstreams"
)
