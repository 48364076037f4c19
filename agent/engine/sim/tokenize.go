package sim

import (
	"fmt"
	"net/http"
)

// tokenize serves /tokenize for a prompt or for messages.
func (x *call) tokenize(f fields) {
	var ids []uint32
	if _, ok := f.get("messages"); ok {
		_, asked := f.get("add_generation_prompt")
		ids = chatPrompt(f, "", f.flag("add_generation_prompt") || !asked)
	} else {
		f.require("prompt")
		ids = encode([]uint32{}, f.text("prompt"))
	}
	strs := f.flag("return_token_strs")
	if !x.known(f, true) {
		return
	}
	out := struct {
		Count  int      `json:"count"`
		MaxLen int      `json:"max_model_len"`
		Tokens []uint32 `json:"tokens"`
		Strs   []string `json:"token_strs"`
	}{Count: len(ids), MaxLen: x.e.cfg.MaxModelLen, Tokens: ids}
	if strs {
		out.Strs = make([]string, len(ids))
		for i, id := range ids {
			out.Strs[i] = tokenText(id)
		}
	}
	x.json(http.StatusOK, out)
}

// detokenize serves /detokenize.
func (x *call) detokenize(f fields) {
	f.require("tokens")
	var ids []uint32
	if raw, ok := f.get("tokens"); ok {
		if ids, ok = idList(raw); !ok {
			f.fail("tokens", "list_type", fmt.Sprintf("Input should be a list of token ids from 0 to %d", uint32(1<<32-1)), inputOf(raw))
		}
	}
	if x.known(f, true) {
		x.json(http.StatusOK, map[string]string{"prompt": decode(ids)})
	}
}

// known answers with what is wrong with f or its model, if anything is.
func (x *call) known(f fields, generate bool) bool {
	q := request{model: f.text("model")}
	bad := f.err()
	if bad == nil {
		bad = x.core.resolve(&q, generate)
	}
	if bad != nil {
		x.fail(bad)
		return false
	}
	return true
}
