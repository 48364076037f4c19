package llmgw

import (
	"testing"
	"time"
)

// TestLongPromptsPass: engines are silent for more than a minute before the
// first token of a long prompt.
func TestLongPromptsPass(t *testing.T) {
	const prompt = 70 * time.Second
	m, err := new(App).modelDefaults(new(Model))
	if err != nil {
		t.Fatal(err)
	}
	if r := m.Reliability; r.FirstToken <= prompt || r.Total <= prompt {
		t.Errorf("by default a request ends after %v without a token, and after %v", r.FirstToken, r.Total)
	}
}
