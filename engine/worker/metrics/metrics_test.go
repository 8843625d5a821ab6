package metrics

import (
	"io"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestNames: what scrapes a vLLM finds its names from the start, at zero.
func TestNames(t *testing.T) {
	w := httptest.NewRecorder()
	New("m", 3200).Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	b, err := io.ReadAll(w.Result().Body)
	if err != nil {
		t.Fatal(err)
	}
	const labels = `engine="0",model_name="m"`
	for _, want := range []string{
		`vllm:num_requests_running{` + labels + `} 0`,
		`vllm:num_requests_waiting{` + labels + `} 0`,
		`vllm:num_requests_waiting_by_reason{` + labels + `,reason="capacity"} 0`,
		`vllm:kv_cache_usage_perc{` + labels + `} 0`,
		`vllm:cache_config_info{block_size="16",` + labels + `,num_gpu_blocks="200"} 1`,
		`vllm:prompt_tokens_total{` + labels + `} 0`,
		`vllm:generation_tokens_total{` + labels + `} 0`,
		`vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 0`,
		`vllm:time_to_first_token_seconds_count{` + labels + `} 0`,
		`vllm:inter_token_latency_seconds_bucket{` + labels + `,le="0.025"} 0`,
		`vllm:e2e_request_latency_seconds_sum{` + labels + `} 0`,
		`weir:pd_fallback_total{` + labels + `,reason="dial"} 0`,
		`weir:prompt_tokens_computed_total{` + labels + `,phase="decode_leg"} 0`,
		`weir:kv_pull_bytes_total{` + labels + `} 0`,
		`process_resident_memory_bytes`,
	} {
		if !strings.Contains(string(b), want) {
			t.Errorf("no %s", want)
		}
	}
}
