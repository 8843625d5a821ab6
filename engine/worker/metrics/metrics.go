// Package metrics holds a worker's Prometheus metrics: vLLM's names and labels
// (model_name, engine), so that whatever scrapes a vLLM scrapes a weir worker,
// and Weir's own for prefill/decode hand-off under weir:.
package metrics

import (
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weirhq/weir/internal/gpu"
)

// BlockSize is the block in which KV use is told, in tokens. The runner has no
// blocks; vLLM's usual size keeps dashboards comparable.
const BlockSize = 16

// Bucket bounds in seconds and tokens, from vLLM where it has the metric.
var (
	ttftBuckets = []float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	itlBuckets  = []float64{.0005, .001, .0025, .005, .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	longBuckets = []float64{.01, .03, .1, .3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920}
	sizeBuckets = []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000}
	pullBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
)

// Set is the metrics of one loaded model.
type Set struct {
	Running, Waiting, KVUsage                   prometheus.Gauge
	WaitingBy                                   *prometheus.GaugeVec // reason
	PromptTokens, GenerationTokens, Preemptions prometheus.Counter
	PrefixQueries, PrefixHits, Evictions        prometheus.Counter     // tokens, tokens, sequences
	Success                                     *prometheus.CounterVec // finished_reason
	TTFT, ITL, TPOT, E2E                        prometheus.Histogram
	Queue, Inference, Prefill, Decode           prometheus.Histogram
	PromptSize, GenerationSize, IterationTokens prometheus.Histogram

	PDFallback                     *prometheus.CounterVec // reason
	Computed                       *prometheus.CounterVec // phase: prefill, decode_leg
	PullBytes                      prometheus.Counter
	PullSeconds                    prometheus.Histogram
	ExportBytes                    prometheus.Counter
	ExportsRefused, ExportsExpired prometheus.Counter

	Migrations     *prometheus.CounterVec // result
	Stages         prometheus.Histogram
	MigrationBytes prometheus.Counter
	Downtime       prometheus.Histogram

	reg   *prometheus.Registry
	model prometheus.Registerer // adds the model's labels
}

// maker registers metrics with the labels of one model.
type maker struct{ reg prometheus.Registerer }

func (m maker) gauge(name, help string) prometheus.Gauge {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	m.reg.MustRegister(g)
	return g
}

func (m maker) counter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	m.reg.MustRegister(c)
	return c
}

func (m maker) counters(name, help, label string, values ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	m.reg.MustRegister(c)
	for _, v := range values {
		c.WithLabelValues(v) // shown as 0: absence would mean unknown
	}
	return c
}

func (m maker) histogram(name, help string, buckets []float64) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
	m.reg.MustRegister(h)
	return h
}

// New returns the metrics of model, whose KV cache holds kvTokens.
func New(model string, kvTokens int) *Set {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), gpu.NewCollector())
	labels := prometheus.Labels{"model_name": model, "engine": "0"}
	m := maker{prometheus.WrapRegistererWith(labels, reg)}
	s := &Set{reg: reg, model: m.reg}
	s.load(m, kvTokens)
	s.latency(m)
	s.handoff(m)
	s.migration(m)
	return s
}

func (s *Set) load(m maker, kvTokens int) {
	s.Running = m.gauge("vllm:num_requests_running", "Requests that have a sequence.")
	s.Waiting = m.gauge("vllm:num_requests_waiting", "Requests that wait for one.")
	s.WaitingBy = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "vllm:num_requests_waiting_by_reason",
		Help: "Waiting requests by what the first of them waits for."}, []string{"reason"})
	m.reg.MustRegister(s.WaitingBy)
	s.WaitingBy.WithLabelValues("capacity")
	s.WaitingBy.WithLabelValues("deferred")
	s.KVUsage = m.gauge("vllm:kv_cache_usage_perc", "Share of the KV cache that requests hold, 0 to 1; the prefix cache, which makes room, is not counted.")
	s.PromptTokens = m.counter("vllm:prompt_tokens_total", "Prompt tokens of admitted requests.")
	s.GenerationTokens = m.counter("vllm:generation_tokens_total", "Tokens generated.")
	s.Preemptions = m.counter("vllm:num_preemptions_total", "Sequences given up and computed anew.")
	s.PrefixQueries = m.counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.")
	s.PrefixHits = m.counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.")
	s.Evictions = m.counter("weir:prefix_cache_evictions_total", "Sequences evicted from the prefix cache.")
	s.Success = m.counters("vllm:request_success_total", "Requests ended, by reason.", "finished_reason", "stop", "length", "abort", "error", "migrated")
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "vllm:cache_config_info", Help: "Size of the KV cache."},
		[]string{"block_size", "num_gpu_blocks"})
	m.reg.MustRegister(info)
	info.WithLabelValues(strconv.Itoa(BlockSize), strconv.Itoa(kvTokens/BlockSize)).Set(1)
}

func (s *Set) latency(m maker) {
	s.TTFT = m.histogram("vllm:time_to_first_token_seconds", "From arrival to the first token.", ttftBuckets)
	s.ITL = m.histogram("vllm:inter_token_latency_seconds", "Between two tokens of a request.", itlBuckets)
	s.TPOT = m.histogram("vllm:request_time_per_output_token_seconds", "Mean time per token after the first.", itlBuckets)
	s.E2E = m.histogram("vllm:e2e_request_latency_seconds", "From arrival to the end.", longBuckets)
	s.Queue = m.histogram("vllm:request_queue_time_seconds", "From arrival to admission.", longBuckets)
	s.Inference = m.histogram("vllm:request_inference_time_seconds", "From admission to the end.", longBuckets)
	s.Prefill = m.histogram("vllm:request_prefill_time_seconds", "From admission to the first token.", longBuckets)
	s.Decode = m.histogram("vllm:request_decode_time_seconds", "From the first token to the end.", longBuckets)
	s.PromptSize = m.histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", sizeBuckets)
	s.GenerationSize = m.histogram("vllm:request_generation_tokens", "Tokens generated for a request.", sizeBuckets)
	s.IterationTokens = m.histogram("vllm:iteration_tokens_total", "Tokens in a step.", sizeBuckets)
}

// Reasons of Set.PDFallback: why a decode leg computed its prompt itself.
const (
	FallbackParams   = "params"   // the fields cannot be used
	FallbackDisabled = "disabled" // this worker has no certificate for hand-offs
	FallbackBusy     = "busy"     // too many bytes of hand-offs wait here already
	FallbackDial     = "dial"     // no connection, or the peer is not a worker
	FallbackGone     = "gone"     // the peer does not have the hand-off any more
	FallbackTransfer = "transfer" // the transfer broke off
	FallbackVerify   = "verify"   // length, fingerprint, checksum or tokens differ
	FallbackImport   = "import"   // the runner refused the bytes
)

func (s *Set) handoff(m maker) {
	s.PDFallback = m.counters("weir:pd_fallback_total", "Decode legs that computed their prompt themselves, by reason.", "reason",
		FallbackParams, FallbackDisabled, FallbackBusy, FallbackDial, FallbackGone, FallbackTransfer, FallbackVerify, FallbackImport)
	s.Computed = m.counters("weir:prompt_tokens_computed_total", "Prompt tokens computed here, by kind of request.", "phase", "prefill", "decode_leg")
	s.PullBytes = m.counter("weir:kv_pull_bytes_total", "Bytes of hand-offs received from other workers.")
	s.PullSeconds = m.histogram("weir:kv_pull_seconds", "Time of a whole hand-off, dial included.", pullBuckets)
	s.ExportBytes = m.counter("weir:kv_export_bytes_total", "Bytes of hand-offs sent to other workers.")
	s.ExportsRefused = m.counter("weir:kv_exports_refused_total", "Hand-offs not offered because the store was full.")
	s.ExportsExpired = m.counter("weir:kv_exports_expired_total", "Hand-offs that nobody fetched in time.")
}

// Results of Set.Migrations.
const (
	MigratedStaged  = "staged"  // all but the last tokens were sent ahead
	MigratedWhole   = "whole"   // in one piece, while the request stood still
	MigratedAborted = "aborted" // the request stayed
)

func (s *Set) migration(m maker) {
	s.Migrations = m.counters("weir:migrations_total", "Running requests asked to go on elsewhere, by what became of it.", "result", MigratedStaged, MigratedWhole, MigratedAborted)
	s.Stages = m.histogram("weir:migration_stages", "Copies of a request that moved in stages, the last one included.", []float64{1, 2, 3, 4})
	s.MigrationBytes = m.counter("weir:migration_bytes_total", "Bytes of KV sent ahead of requests that move.")
	s.Downtime = m.histogram("weir:migration_downtime_seconds", "From the stop of a request at another worker to its next token here.", pullBuckets)
}

// ExportsKept shows the bytes of hand-offs that wait to be read.
func (s *Set) ExportsKept(bytes func() int64) {
	s.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "weir:kv_exports_bytes", Help: "Bytes of hand-offs that wait here to be read."},
		func() float64 { return float64(bytes()) }))
}

// Register adds what another part counts, under the model's labels.
func (s *Set) Register(c prometheus.Collector) { s.model.MustRegister(c) }

// Handler serves the metrics in Prometheus' text format.
func (s *Set) Handler() http.Handler {
	return promhttp.HandlerFor(s.reg, promhttp.HandlerOpts{Registry: s.reg})
}
