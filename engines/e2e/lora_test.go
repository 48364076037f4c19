//go:build engines

package e2e

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// The adapters of the model reborn that the doomed engine loads when asked to: one is there.
const (
	poet, nobody = "tiny-poet", "tiny-nobody"
)

// adapterFolder is where an adapter is, or would be.
func (r *rig) adapterFolder(name string) string { return filepath.Join(r.keeper.dir, "loras", name) }

// writeAdapter makes an adapter of random numbers for the tiny model, as PEFT stores them.
func writeAdapter(folder string) error {
	const rank, hidden, layers = 4, 128, 2
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	config := object{
		"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "tiny", "r": rank, "lora_alpha": 64,
		"target_modules": []string{"q_proj", "o_proj"}, "bias": "none", "lora_dropout": 0.0,
	}
	text, err := json.Marshal(config)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder, "adapter_config.json"), text, 0o600); err != nil {
		return err
	}
	// safetensors: the length of the header, the header, the tensors.
	random := rand.New(rand.NewPCG(1, 2))
	header, data := object{}, new(bytes.Buffer)
	for layer := range layers {
		for _, module := range []string{"q_proj", "o_proj"} {
			for half, shape := range map[string][]int{"lora_A": {rank, hidden}, "lora_B": {hidden, rank}} {
				begin := data.Len()
				for range shape[0] * shape[1] {
					if err := binary.Write(data, binary.LittleEndian, float32(random.NormFloat64())); err != nil {
						return err
					}
				}
				name := fmt.Sprintf("base_model.model.model.layers.%d.self_attn.%s.%s.weight", layer, module, half)
				header[name] = object{"dtype": "F32", "shape": shape, "data_offsets": []int{begin, data.Len()}}
			}
		}
	}
	if text, err = json.Marshal(header); err != nil {
		return err
	}
	file := append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...)
	return os.WriteFile(filepath.Join(folder, "adapter_model.safetensors"), append(file, data.Bytes()...), 0o600)
}

// adapters are the states of the doomed engine's adapters.
func adapters(t *testing.T) map[string]string {
	t.Helper()
	r, err := lab.replicaAt(lab.doomedURL)
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]string)
	for _, a := range r.Adapters {
		all[a.Name] = strings.TrimSpace(a.Status + " " + a.Reason)
	}
	return all
}

// TestLoRAOnDemand: vLLM loads an adapter for the first request for it, again after it was unloaded or the
// engine restarted, and its events tell its cached prompts from the base model's.
func TestLoRAOnDemand(t *testing.T) {
	if err := writeAdapter(lab.adapterFolder(poet)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "True")
	options := append([]string{"--enable-lora", "--max-lora-rank", "8", "--max-loras", "2"}, lab.doomedOptions...)
	p := startDoomed(t, options...)
	followed(t, lab.doomedURL, true)
	if s := adapters(t); len(s) != 0 {
		t.Errorf("before anybody asked: %v", s)
	}
	prompt := func(model string, turns int) object {
		return conversation(model, strings.Repeat("You are a poet. ", 30), strings.Repeat("And then? ", turns))
	}
	answer := func(model string) string {
		t.Helper()
		return string(posted(t, lab.gatewayURL+"/v1/chat/completions", prompt(model, 1)).body)
	}
	// turn sends a turn and compares what the engine had of it with what it was said to have.
	turn := func(turns int, held bool) {
		t.Helper()
		eventually(t, patience, func() error {
			if s := shares(t, prompt(poet, turns))[lab.doomedURL]; s > 0.5 != held {
				return errStill("%v of it is said to be cached", s)
			}
			return nil
		})
		before := shares(t, prompt(poet, turns))[lab.doomedURL]
		_, decision, n, tokens := cached(t, prompt(poet, turns))
		if want := int(before*float64(tokens) + 0.5); want != n {
			t.Errorf("turn %d: %d tokens were said to be cached, %d were: %s", turns, want, n, decision)
		}
	}
	base := answer(reborn)
	if text := answer(poet); !strings.Contains(text, `"model":"`+poet+`"`) || contentOf(t, text) == contentOf(t, base) {
		t.Errorf("the adapter says %s, the base model %s", text, base)
	}
	if s := adapters(t); s[poet] != "ready" {
		t.Errorf("%v", s)
	}
	turn(2, true)
	turn(20, true)

	res := post(t, lab.gatewayURL+"/v1/chat/completions", prompt(nobody, 1))
	if res.status != 502 || strings.Contains(string(res.body), lab.keeper.dir) {
		t.Errorf("one that is nowhere: %d %s", res.status, res.body)
	}
	if s := adapters(t); !strings.HasPrefix(s[nobody], "failed the engine answered 404: Loading lora "+nobody+" failed: No adapter found for") {
		t.Errorf("%v", s)
	}

	posted(t, lab.doomedURL+"/v1/unload_lora_adapter", object{"lora_name": poet})
	answer(poet)

	// Somebody puts another in its place, which is seen when the engine is asked what it serves.
	other := lab.adapterFolder("other")
	if err := writeAdapter(other); err != nil {
		t.Fatal(err)
	}
	posted(t, lab.doomedURL+"/v1/unload_lora_adapter", object{"lora_name": poet})
	posted(t, lab.doomedURL+"/v1/load_lora_adapter", object{"lora_name": poet, "lora_path": other})
	eventually(t, patience, func() error {
		r, err := lab.replicaAt(lab.doomedURL)
		if err != nil {
			return err
		}
		for _, a := range r.Adapters {
			if a.Name == poet && a.Path == other {
				return nil
			}
		}
		return errStill("%+v", r.Adapters)
	})
	answer(poet)
	if list, err := get(lab.doomedURL + "/v1/models"); err != nil || strings.Contains(string(list), other) || !strings.Contains(string(list), lab.adapterFolder(poet)) {
		t.Errorf("it is not loaded from where config says: %s, %v", list, err)
	}

	_ = syscall.Kill(-p.pid, syscall.SIGKILL)
	<-p.done
	followed(t, lab.doomedURL, false)
	startDoomed(t, options...)
	followed(t, lab.doomedURL, true)
	if s := adapters(t); s[poet] == "ready" {
		t.Errorf("after a restart: %v", s)
	}
	turn(3, false)
	if s := adapters(t); s[poet] != "ready" {
		t.Errorf("%v", s)
	}
}

// contentOf is the text of a chat completion.
func contentOf(t *testing.T, body string) string {
	t.Helper()
	var c struct {
		Choices []struct{ Message struct{ Content string } }
	}
	if err := json.Unmarshal([]byte(body), &c); err != nil || len(c.Choices) != 1 {
		t.Fatalf("%v in %s", err, body)
	}
	return c.Choices[0].Message.Content
}
