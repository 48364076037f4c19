package sim

import (
	"fmt"
	"net/http"
)

type modelList struct {
	Object string      `json:"object"`
	Data   []modelCard `json:"data"`
}

type modelCard struct {
	ID          string       `json:"id"`
	Object      string       `json:"object"`
	Created     int64        `json:"created"`
	OwnedBy     string       `json:"owned_by"`
	Root        string       `json:"root"`
	Parent      *string      `json:"parent"`
	MaxModelLen *int         `json:"max_model_len"`
	Permission  []permission `json:"permission"`
}

type permission struct {
	ID                 string `json:"id"`
	Object             string `json:"object"`
	Created            int64  `json:"created"`
	AllowCreateEngine  bool   `json:"allow_create_engine"`
	AllowSampling      bool   `json:"allow_sampling"`
	AllowLogprobs      bool   `json:"allow_logprobs"`
	AllowSearchIndices bool   `json:"allow_search_indices"`
	AllowView          bool   `json:"allow_view"`
	AllowFineTuning    bool   `json:"allow_fine_tuning"`
	Organization       string `json:"organization"`
	Group              any    `json:"group"`
	IsBlocking         bool   `json:"is_blocking"`
}

// models serves /v1/models: the models, then the adapters with the first model
// as their parent.
func (x *call) models() {
	cfg := &x.e.cfg
	list := modelList{Object: "list"}
	add := func(name, root string, parent *string, length *int) {
		list.Data = append(list.Data, modelCard{
			ID: name, Object: "model", Created: now(), OwnedBy: "vllm", Root: root, Parent: parent, MaxModelLen: length,
			Permission: []permission{{
				ID: "modelperm-" + randomID(), Object: "model_permission", Created: now(),
				AllowSampling: true, AllowLogprobs: true, AllowView: true, Organization: "*",
			}},
		})
	}
	for _, name := range cfg.Models {
		add(name, "models/"+name, nil, &cfg.MaxModelLen)
	}
	for _, a := range x.core.adapters.all() {
		add(a.name, a.path, &cfg.Models[0], nil)
	}
	x.json(http.StatusOK, list)
}

// health serves /health and /ping: an empty 200.
func (x *call) health() { x.answer(http.StatusOK, "", nil) }

func (x *call) version() { x.json(http.StatusOK, map[string]string{"version": Version}) }

// load serves /load: the unfinished sequences.
func (x *call) load() {
	x.json(http.StatusOK, map[string]int64{"server_load": x.core.inflight.Load()})
}

// serverInfo serves the part of /server_info that says something here.
func (x *call) serverInfo() {
	cfg := &x.e.cfg
	x.json(http.StatusOK, struct {
		Config string   `json:"vllm_config"`
		Env    struct{} `json:"vllm_env"`
	}{Config: fmt.Sprintf(
		"model='models/%s', max_seq_len=%d, data_parallel_size=%d, device_config=%s, nnodes=%d, node_rank=%d, seed=%d, served_model_name=%s, enable_prefix_caching=True, enable_chunked_prefill=True",
		cfg.Models[0], cfg.MaxModelLen, cfg.DataParallel, cfg.GPUClass, cfg.Nodes, cfg.Rank, cfg.Seed, cfg.Models[0])})
}
