package sim

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"
)

// adapters are the LoRA adapters that an engine serves, in the order in which they came.
type adapters struct {
	mu   sync.RWMutex
	list []servedLoRA
}

type servedLoRA struct{ name, path string }

func newAdapters(cfg *Config) *adapters {
	a := new(adapters)
	for _, name := range cfg.LoRAs {
		a.list = append(a.list, servedLoRA{name, "models/" + name})
	}
	return a
}

// hasLoRAs says whether there may be adapters (vLLM's --enable-lora).
func (c *Config) hasLoRAs() bool { return len(c.LoRAs) > 0 || c.LoRAUpdating }

func (a *adapters) all() []servedLoRA {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return slices.Clone(a.list)
}

func (a *adapters) index(name string) int {
	return slices.IndexFunc(a.list, func(l servedLoRA) bool { return l.name == name })
}

func (a *adapters) has(name string) bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.index(name) >= 0
}

// add returns false if there is one of that name, or there are as many as there may be.
func (a *adapters) add(name, path string, most int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.index(name) >= 0 || len(a.list) >= most {
		return false
	}
	a.list = append(a.list, servedLoRA{name, path})
	return true
}

func (a *adapters) remove(name string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := a.index(name)
	if i < 0 {
		return false
	}
	a.list = slices.Delete(a.list, i, i+1)
	return true
}

// loadLoRA serves /v1/load_lora_adapter. Of the adapter's files it wants no more than that
// there are some.
func (x *call) loadLoRA(f fields) {
	name, path := f.text("lora_name"), f.text("lora_path")
	if bad := f.err(); bad != nil {
		x.fail(bad)
		return
	}
	invalid := func(format string, args ...any) {
		x.fail(&apiError{status: http.StatusBadRequest, kind: "InvalidUserInput", message: fmt.Sprintf(format, args...)})
	}
	switch {
	case name == "" || path == "":
		invalid("Both 'lora_name' and 'lora_path' must be provided.")
		return
	case slices.Contains(x.e.cfg.Models, name):
		invalid("The lora adapter '%s' conflicts with a served base model.", name)
		return
	}
	if _, err := os.Stat(path); err != nil {
		x.fail(&apiError{
			status: http.StatusNotFound, kind: "NotFoundError",
			message: fmt.Sprintf("Loading lora %s failed: No adapter found for %s", name, path),
		})
		return
	}
	select {
	case <-time.After(x.core.slowed(x.e.cfg.LoRALoad)):
	case <-x.core.done:
		x.cut()
		return
	}
	if !x.core.adapters.add(name, path, maxNames) {
		invalid("The lora adapter '%s' has already been loaded. If you want to load the adapter in place, set 'load_inplace' to True.", name)
		return
	}
	x.answer(http.StatusOK, "", fmt.Appendf(nil, "Success: LoRA adapter '%s' added successfully.", name))
}

// unloadLoRA serves /v1/unload_lora_adapter.
func (x *call) unloadLoRA(f fields) {
	name := f.text("lora_name")
	if bad := f.err(); bad != nil {
		x.fail(bad)
		return
	}
	if !x.core.adapters.remove(name) {
		x.fail(&apiError{status: http.StatusNotFound, kind: "NotFoundError", message: fmt.Sprintf("The lora adapter '%s' cannot be found.", name)})
		return
	}
	x.answer(http.StatusOK, "", fmt.Appendf(nil, "Success: LoRA adapter '%s' removed successfully.", name))
}
