package integration

import "testing"

// bothPaths runs a test with the site that `llm` stands for, and with one in
// which Caddy's reverse proxy does the work of llm_proxy.
func bothPaths(t *testing.T, test func(t *testing.T, site string)) {
	t.Helper()
	for name, site := range map[string]string{
		"llm_proxy": "\tllm",
		"reverse_proxy": `	route {
		llm_api
		llm_keys
		llm_models
		reverse_proxy {
			dynamic llm
			transport llm
			lb_policy first
			lb_retries 10
		}
	}`,
	} {
		t.Run(name, func(t *testing.T) { test(t, site) })
	}
}
