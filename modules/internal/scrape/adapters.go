package scrape

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/llmgw/llmgw/modules/internal/fleet"
	"github.com/llmgw/llmgw/modules/internal/openai"
)

// maxLoadAnswer bounds what is read of an engine's answer.
const maxLoadAnswer = 64 << 10

// loading is where engines are asked to load adapters, and by what name they are asked for one.
type loading struct {
	load, unload string
	served       func(base, name string) string
}

// loadings are the engines that load adapters: vLLM, if it runs with
// VLLM_ALLOW_RUNTIME_LORA_UPDATING, for which any is taken that is not named; and SGLang, which takes a
// name without its base model's for the base model.
var loadings = map[string]*loading{
	"":       {"/v1/load_lora_adapter", "/v1/unload_lora_adapter", func(_, name string) string { return name }},
	"vllm":   {"/v1/load_lora_adapter", "/v1/unload_lora_adapter", func(_, name string) string { return name }},
	"sglang": {"/load_lora_adapter", "/unload_lora_adapter", func(base, name string) string { return base + ":" + name }},
}

// LoadsAdapters reports whether engines of this kind load LoRA adapters when asked to.
func LoadsAdapters(engine string) bool { return loadings[engine] != nil }

// ServedAdapter returns by what name an engine of a kind that loads adapters is asked for one.
func ServedAdapter(engine, base, name string) string { return loadings[engine].served(base, name) }

// LoadAdapter has the engine load a LoRA adapter, in place of one of the same name from another path if
// there is one. It returns nil if the engine lists it then. The caller bounds ctx.
func (t *Target) LoadAdapter(ctx context.Context, a fleet.Adapter) error {
	how := loadings[t.Engine]
	_, listed, err := t.models(ctx)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(listed, func(o fleet.Adapter) bool { return o.Name == a.Name && !a.Is(o) }) {
		if err := t.ask(ctx, how.unload, map[string]string{"lora_name": a.Name}); err != nil && !errors.Is(err, errGone) {
			return err
		}
	}
	// Whether somebody else has loaded it meanwhile, the list will tell.
	if err := t.ask(ctx, how.load, map[string]string{"lora_name": a.Name, "lora_path": a.Path}); err != nil && !errors.Is(err, errLoaded) {
		return err
	}
	if _, listed, err = t.models(ctx); err != nil {
		return err
	}
	if !slices.ContainsFunc(listed, a.Is) {
		return fmt.Errorf("the engine says that it has loaded the adapter %q, and does not list it", a.Name)
	}
	return nil
}

var (
	errNoLoading = errors.New("the engine loads no adapters when asked to: vLLM has to run with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, SGLang with --enable-lora and `engine sglang` at its endpoint")
	errLoaded    = errors.New("the adapter is loaded already")
	errGone      = errors.New("there is no such adapter")
)

// ask posts to the engine.
func (t *Target) ask(ctx context.Context, path string, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
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
		return errLoaded
	case res.StatusCode == http.StatusMethodNotAllowed || res.StatusCode == http.StatusNotFound && !strings.Contains(string(text), `"message"`):
		return errNoLoading
	}
	if res.StatusCode == http.StatusNotFound && strings.Contains(string(text), "cannot be found") {
		return errGone // by another gateway
	}
	message := openai.Normalize(res.StatusCode, text).Message
	if t.APIKey != "" {
		message = strings.ReplaceAll(message, t.APIKey, "[redacted]")
	}
	return fmt.Errorf("the engine answered %d: %s", res.StatusCode, message)
}
