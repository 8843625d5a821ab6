// Package fake speaks the protocol of a vLLM server without a model: chat and
// text completions, streams, usage, log-probabilities, both legs of
// prefill/decode with kv_transfer_params, model list, health and metrics, with
// latencies that are set and text that depends only on the prompt. Tests and
// users put it where an engine would stand.
//
// What is true to vLLM: members of requests that it does not know are ignored;
// errors are nested with an integer code; answers carry vLLM's extra members;
// a prefill leg answers remote_block_ids as a list of lists, keeps its blocks
// for a lease and gives them up to the first who fetches them. What is not: the
// blocks travel as an HTTP request to remote_host:remote_port instead of NIXL,
// and hold no bytes.
//
// With Options.Weir it speaks as a Weir worker does beyond vLLM: a health
// answer with name, epoch and role, the stream of state, token_ids, resumption
// and migration.
package fake

import (
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// Options set what an Engine is and how fast. Zero values take the defaults.
type Options struct {
	Model    string // name as served; "fake"
	EngineID string // remote_engine_id; random
	Context  int    // tokens; 8192
	MaxSeqs  int    // requests computed at a time, others wait; 256
	// BlockSize is the tokens of one KV block; 16. Blocks is how many there are;
	// Context*MaxSeqs/BlockSize, at most 65536.
	BlockSize, Blocks int
	// MaxTokens is the answer's length when the request names none; 16.
	MaxTokens int
	// TTFT is the time to the first token of an empty prompt, PerPromptToken what
	// each prompt token adds where it is computed, ITL the time of each further
	// token, PerSequence what each request that is computed adds to ITL. All 0 by
	// default. With PerSequence and Weir the state tells them as a cost model.
	TTFT, PerPromptToken, ITL, PerSequence time.Duration
	// Lease is how long a prefill leg's blocks are kept; 30 s.
	Lease time.Duration
	// Recompute computes the prompt here when its blocks cannot be fetched
	// (kv_load_failure_policy recompute); by default the request fails.
	Recompute bool
	// Host and Port go out as remote_host and remote_port; by default those under
	// which the prefill leg was asked.
	Host string
	Port int
	// Logprob is the log-probability of each token; -0.01. Logprobs, when set,
	// gives each token's of an answer; NaN for none, and then the answer has none.
	Logprob  float64
	Logprobs func(token int) float64
	// Skew is added to the time at which answers say they were created.
	Skew time.Duration
	// Reply, when set, gives the answer to a prompt instead of the generated
	// words. The prompt is the last user message, or the whole text prompt.
	Reply func(prompt string) string
	// Weir adds what a Weir worker says; Name and Role are said then, "fake" and
	// "mixed" by default. EngineID is the epoch.
	Weir       bool
	Name, Role string
	// Weights is the fingerprint's with Weir; "" has no fingerprint.
	Weights string
	// Faults strike requests, the first that matches each; SetFaults changes them.
	Faults []Script
	// Delay is the wait of FaultSlow; 1 s.
	Delay time.Duration
	// OldMetrics gives metrics the names and labels of older vLLM versions.
	OldMetrics bool
	// Hook, when set, may make anything go wrong: see Hook.
	Hook Hook
	Log  *slog.Logger
}

func (o *Options) fill() {
	def(&o.Model, "fake")
	def(&o.EngineID, uuid.NewString())
	def(&o.Context, 8192)
	def(&o.MaxSeqs, 256)
	def(&o.BlockSize, 16)
	def(&o.Blocks, min(65536, max(1, o.Context*o.MaxSeqs/o.BlockSize)))
	def(&o.MaxTokens, 16)
	def(&o.Lease, 30*time.Second)
	def(&o.Logprob, -0.01)
	def(&o.Delay, time.Second)
	def(&o.Name, "fake")
	def(&o.Role, "mixed")
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
}

func def[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// Engine is the server. It holds no goroutine of its own.
type Engine struct {
	o       Options
	mux     *http.ServeMux
	slots   chan struct{}
	metrics *meters
	blocks  *blocks
	client  *http.Client
	faults  scripts
	calls   atomic.Int64
	created time.Time
	flights flights
	drains  atomic.Bool
	role    atomic.Pointer[string]
	failing atomic.Pointer[string]
	pace    atomic.Int64  // times that a token takes longer, from 1
	steps   atomic.Uint64 // tokens made, each a step of its own
	waiting atomic.Int64
	running atomic.Int64
}

var _ http.Handler = (*Engine)(nil)

// New returns an Engine.
func New(o Options) *Engine {
	o.fill()
	e := &Engine{o: o, mux: http.NewServeMux(), slots: make(chan struct{}, o.MaxSeqs), created: time.Now(),
		client: &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}}
	e.faults.set(o.Faults)
	e.role.Store(&e.o.Role)
	e.failing.Store(new(string))
	e.pace.Store(1)
	e.metrics = newMeters(e)
	e.blocks = &blocks{free: o.Blocks, lease: o.Lease, offers: map[string]*offer{}, expired: e.metrics.expired.Inc}
	e.mux.HandleFunc("POST /v1/chat/completions", e.completions(true))
	e.mux.HandleFunc("POST /v1/completions", e.completions(false))
	e.mux.HandleFunc("GET /v1/models", e.models)
	e.mux.HandleFunc("POST /fake/blocks/{id}", e.handOver)
	e.mux.HandleFunc("PUT /fake/faults", e.putFaults)
	e.mux.HandleFunc("PUT /fake/pace", e.putPace)
	e.mux.HandleFunc("GET /load", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]int64{"server_load": e.running.Load() + e.waiting.Load()})
	})
	e.mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]string{"version": "0.0.0+weir.fake"})
	})
	e.mux.HandleFunc("GET /ping", func(http.ResponseWriter, *http.Request) {}) // 200 without a body
	e.mux.HandleFunc("GET /health", e.health)
	if e.o.Weir {
		e.mux.HandleFunc("PUT /fake/failing", e.putFailing)
		e.mux.HandleFunc("GET /instance/v1/state", e.state)
		e.mux.HandleFunc("POST /instance/v1/migrate", e.migrate)
		e.mux.HandleFunc("POST /instance/v1/drain", e.drain)
		e.mux.HandleFunc("POST /instance/v1/role", e.setRole)
	}
	e.mux.Handle("GET /metrics", e.metrics.handler())
	e.mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		writeError(w, http.StatusNotFound, "Not Found", "")
	})
	return e
}

// ServeHTTP implements http.Handler.
func (e *Engine) ServeHTTP(w http.ResponseWriter, r *http.Request) { e.mux.ServeHTTP(w, r) }

// SetFaults replaces the faults that strike requests from now on.
func (e *Engine) SetFaults(list ...Script) { e.faults.set(list) }

// InFlight is how many requests are computed or wait.
func (e *Engine) InFlight() int { return int(e.running.Load() + e.waiting.Load()) }

// Calls is how many completion requests have come.
func (e *Engine) Calls() int { return int(e.calls.Load()) }

// Held is how many KV blocks are held by requests and by offers.
func (e *Engine) Held() int { return e.blocks.held(e.o.Blocks) }

// blocks is the KV cache: numbers only.
type blocks struct {
	lease   time.Duration
	expired func()

	mu     sync.Mutex
	free   int
	next   int
	offers map[string]*offer
}

// offer is a finished prefill leg's blocks.
type offer struct {
	ids   []int
	until time.Time
	timer *time.Timer
}

// take reserves n blocks; false when there are not as many.
func (b *blocks) take(n int) ([]int, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n > b.free {
		return nil, false
	}
	b.free -= n
	ids := make([]int, n)
	for i := range ids {
		b.next++
		ids[i] = b.next
	}
	return ids, true
}

func (b *blocks) give(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free += n
}

// keep offers blocks that take has reserved, until the lease ends.
func (b *blocks) keep(id string, ids []int) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	o := &offer{ids: ids, until: time.Now().Add(b.lease)}
	o.timer = time.AfterFunc(b.lease, func() {
		if b.fetch(id) {
			b.expired()
		}
	})
	b.offers[id] = o
	return o.until
}

// fetch gives an offer to its first reader and frees its blocks.
func (b *blocks) fetch(id string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	o := b.offers[id]
	if o == nil {
		return false
	}
	o.timer.Stop()
	delete(b.offers, id)
	b.free += len(o.ids)
	return true
}

func (b *blocks) held(total int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return total - b.free
}
