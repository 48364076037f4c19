package scrape

import (
	"slices"
	"strings"
	"testing"
)

// TestParseLoRAs: of the series of vLLM's adapters the latest counts, of those that wait the deferred
// ones wait for no room, and what an engine has read since it began is a sum.
func TestParseLoRAs(t *testing.T) {
	const page = `# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 5
vllm:num_requests_waiting{engine="1",model_name="m"} 2
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 1
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="deferred"} 4
vllm:num_requests_waiting_by_reason{engine="1",model_name="m",reason="deferred"} 2
# TYPE vllm:lora_requests_info gauge
vllm:lora_requests_info{max_lora="4",running_lora_adapters="old",waiting_lora_adapters=""} 1.7e9
vllm:lora_requests_info{max_lora="4",running_lora_adapters="a,b",waiting_lora_adapters="c, a"} 1.8e9
vllm:lora_requests_info{max_lora="4",running_lora_adapters="older",waiting_lora_adapters=""} 1.6e9
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 3e12
vllm:prompt_tokens_total{engine="1",model_name="other"} 1
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.79595243636e+09
`
	s, err := Parse(strings.NewReader(page), "", nil, []string{"m"})
	if err != nil {
		t.Fatal(err)
	}
	if s.Waiting != 7 || s.Deferred != 6 || s.MaxLoRAs != 4 || !slices.Equal(s.LoRAs, []string{"a", "b", "c"}) || s.Prompted != 3e12+1 || s.Started != 1.79595243636e+09 {
		t.Errorf("%+v", s)
	}
	for _, bad := range []string{`max_lora="x"`, `max_lora="0"`, `max_lora="99999999"`} {
		s, err := Parse(strings.NewReader(strings.ReplaceAll(page, `max_lora="4"`, bad)), "", nil, nil)
		if err != nil || s.MaxLoRAs != 0 || s.LoRAs != nil {
			t.Errorf("%s: %+v, %v", bad, s, err)
		}
	}
}
