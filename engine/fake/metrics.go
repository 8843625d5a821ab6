package fake

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// meters are the metrics of a vLLM server that a router reads.
type meters struct {
	reg                                *prometheus.Registry
	prompt, generated, failed, expired prometheus.Counter
	success                            *prometheus.CounterVec
	ttft, itl, e2e, queue              prometheus.Histogram
	transfer, transferred              prometheus.Histogram
}

func newMeters(e *Engine) *meters {
	m := &meters{reg: prometheus.NewRegistry()}
	labels := prometheus.Labels{"model_name": e.o.Model, "engine": "0"}
	if e.o.OldMetrics {
		delete(labels, "engine")
	}
	reg := prometheus.WrapRegistererWith(labels, m.reg)
	counter := func(name, help string) prometheus.Counter {
		if e.o.OldMetrics {
			name = strings.TrimSuffix(name, "_total")
		}
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		reg.MustRegister(c)
		return c
	}
	gauge := func(name, help string, f func() float64) {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, f))
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
		reg.MustRegister(h)
		return h
	}
	gauge("vllm:num_requests_running", "Requests being computed.", func() float64 { return float64(e.running.Load()) })
	gauge("vllm:num_requests_waiting", "Requests that wait.", func() float64 { return float64(e.waiting.Load()) })
	kvUsage := "vllm:kv_cache_usage_perc"
	if e.o.OldMetrics {
		kvUsage = "vllm:gpu_cache_usage_perc"
	}
	gauge(kvUsage, "Share of KV blocks in use, 0 to 1.", func() float64 { return float64(e.Held()) / float64(e.o.Blocks) })
	m.prompt = counter("vllm:prompt_tokens_total", "Prompt tokens.")
	m.generated = counter("vllm:generation_tokens_total", "Generated tokens.")
	counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.")
	counter("vllm:prefix_cache_hits_total", "Prompt tokens found there: none, there is no cache.")
	counter("vllm:num_preemptions_total", "Preemptions: none.")
	m.failed = counter("vllm:nixl_num_failed_transfers_total", "Block transfers that failed.")
	m.expired = counter("vllm:nixl_num_kv_expired_reqs_total", "Offers of blocks that nobody fetched in time.")
	m.success = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "vllm:request_success_total", Help: "Ended requests."}, []string{"finished_reason"})
	reg.MustRegister(m.success)
	for _, r := range []string{"stop", "length", "abort", "error"} {
		m.success.WithLabelValues(r)
	}
	m.ttft = histogram("vllm:time_to_first_token_seconds", "Arrival to first token.", prometheus.ExponentialBuckets(.001, 2, 18))
	m.itl = histogram("vllm:inter_token_latency_seconds", "Between tokens.", prometheus.ExponentialBuckets(.001, 2, 16))
	m.e2e = histogram("vllm:e2e_request_latency_seconds", "Arrival to end.", prometheus.ExponentialBuckets(.001, 2, 20))
	m.queue = histogram("vllm:request_queue_time_seconds", "Arrival to admission.", prometheus.ExponentialBuckets(.001, 2, 18))
	m.transfer = histogram("vllm:nixl_xfer_time_seconds", "Time of a block transfer.", prometheus.ExponentialBuckets(.0001, 4, 10))
	m.transferred = histogram("vllm:nixl_bytes_transferred", "Bytes of a block transfer.", prometheus.ExponentialBuckets(1<<20, 4, 10))
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "vllm:cache_config_info", Help: "KV cache."}, []string{"block_size", "num_gpu_blocks"})
	reg.MustRegister(info)
	info.WithLabelValues(strconv.Itoa(e.o.BlockSize), strconv.Itoa(e.o.Blocks)).Set(1)
	return m
}

func (m *meters) handler() http.Handler { return promhttp.HandlerFor(m.reg, promhttp.HandlerOpts{}) }
