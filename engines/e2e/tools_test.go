//go:build engines

package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestOpenAISDK runs OpenAI's own client library against each kind of engine.
func TestOpenAISDK(t *testing.T) {
	for _, c := range []struct{ model, alias, embedding string }{
		{"tiny", "tiny-llama", "text-embedding"},
		{"smollm2-135m", "smol", "minilm"},
		{"sim", "sim", "sim"},
	} {
		t.Run(c.model, func(t *testing.T) {
			out, err := exec.CommandContext(t.Context(), scripts+"/sdk.sh", "run", "testdata/sdk.py",
				"--url", lab.gatewayURL, "--keyed-url", lab.keyedURL, "--key", testKey,
				"--model", c.model, "--alias", c.alias, "--embedding", c.embedding).CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			t.Logf("%s", out)
		})
	}
}

// TestVLLMBench: vLLM's own load generator gets through without an error.
func TestVLLMBench(t *testing.T) {
	dir := t.TempDir()
	out, err := exec.CommandContext(t.Context(), scripts+"/vllm.sh", "bench", lab.gatewayURL,
		"--num-prompts", "20", "--request-rate", "5", "--disable-tqdm",
		"--save-result", "--result-dir", dir, "--result-filename", "result.json").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text, err := os.ReadFile(filepath.Join(dir, "result.json"))
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var result struct {
		Completed int
		Failed    *int
		Output    int     `json:"total_output_tokens"`
		TTFT      float64 `json:"median_ttft_ms"`
		TPOT      float64 `json:"median_tpot_ms"`
	}
	if err := json.Unmarshal(text, &result); err != nil {
		t.Fatal(err)
	}
	if result.Completed != 20 || result.Failed == nil || *result.Failed != 0 || result.Output != 20*32 {
		t.Errorf("%+v, want 20 completed, 0 failed, 640 tokens\n%s", result, out)
	}
	t.Logf("median: first token %.0f ms, each further %.1f ms", result.TTFT, result.TPOT)
}
