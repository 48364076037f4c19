package scrape

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/llmgw/llmgw/modules/internal/openai"
)

// maxLoadAnswer bounds what is read of an engine's answer.
const maxLoadAnswer = 64 << 10

// loadPaths are where engines are asked to load an adapter: vLLM, if it runs with
// VLLM_ALLOW_RUNTIME_LORA_UPDATING, and SGLang.
var loadPaths = map[string][]string{
	"vllm":   {"/v1/load_lora_adapter"},
	"sglang": {"/load_lora_adapter"},
	"":       {"/v1/load_lora_adapter", "/load_lora_adapter"},
}

// LoadsAdapters reports whether engines of this kind load LoRA adapters when asked to.
func LoadsAdapters(engine string) bool { return loadPaths[engine] != nil }

// LoadAdapter has the engine load a LoRA adapter, from a path that is the engine's to understand, and
// returns the adapters that it lists after that. The caller bounds ctx.
func (t *Target) LoadAdapter(ctx context.Context, name, path string) (listed []string, err error) {
	body, err := json.Marshal(map[string]string{"lora_name": name, "lora_path": path})
	if err != nil {
		return nil, err
	}
	for _, at := range loadPaths[t.Engine] {
		if err = t.load(ctx, at, body); !errors.Is(err, errNoLoading) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	_, listed, err = t.models(ctx)
	return listed, err
}

var errNoLoading = errors.New("the engine loads no adapters when asked to: vLLM has to run with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, SGLang with --enable-lora")

func (t *Target) load(ctx context.Context, path string, body []byte) error {
	u := *t.Replica.URL
	u.Path += path
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := t.do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxLoadAnswer))
	if err != nil {
		return err
	}
	switch {
	case res.StatusCode < 300:
		return nil
	case res.StatusCode == http.StatusBadRequest && strings.Contains(string(text), "already"):
		return nil // whoever it was; the list of models will tell
	case res.StatusCode == http.StatusMethodNotAllowed || res.StatusCode == http.StatusNotFound && !strings.Contains(string(text), `"message"`):
		return errNoLoading
	}
	return fmt.Errorf("the engine answered %d: %s", res.StatusCode, openai.Normalize(res.StatusCode, text).Message)
}
