package llmapi

import (
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/dustin/go-humanize"
)

// option reads one option that `llm_api` and `llm` share. It returns false for
// a word that it does not know.
func (h *Handler) option(d *caddyfile.Dispenser) (known bool, err error) {
	switch d.Val() {
	case "body_limit":
		var text string
		if !d.AllArgs(&text) {
			return true, d.ArgErr()
		}
		n, err := humanize.ParseBytes(text)
		if err != nil {
			return true, d.Errf("body_limit: %q is not a size such as 32MiB", text)
		}
		if n == 0 || n > 1<<40 {
			return true, d.Errf("body_limit %s: must be from 1 byte to 1TiB", text)
		}
		h.BodyLimit = int64(n)
		return true, nil
	case "inject_usage":
		on, err := onOff(d)
		h.InjectUsage = &on
		return true, err
	case "debug_headers":
		h.DebugHeaders, err = onOff(d)
		return true, err
	case "open":
		if d.NextArg() {
			return true, d.ArgErr()
		}
		h.Open = true
		return true, nil
	case "path":
		args := d.RemainingArgs()
		if len(args) == 0 {
			return true, d.ArgErr()
		}
		h.Paths = append(h.Paths, args...)
		return true, nil
	}
	return false, nil
}

func onOff(d *caddyfile.Dispenser) (bool, error) {
	option, text := d.Val(), ""
	if !d.AllArgs(&text) {
		return false, d.ArgErr()
	}
	if text != "on" && text != "off" {
		return false, d.Errf("%s: %q is neither on nor off", option, text)
	}
	return text == "on", nil
}
