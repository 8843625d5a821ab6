// Package state is what a worker tells gateways about itself: a board that the
// step loop and the handlers write, and messages that any number of readers
// make from it at their own pace. A reader that is too slow loses nothing but
// detail: it gets all prefix keys again.
package state

import (
	"time"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/worker/cost"
)

// Message is one snapshot of a worker. Counts are now, not since the last one.
type Message struct {
	// Full says that KeysAdded are all keys: what was known before is void.
	Full bool `json:"full,omitempty"`
	// Seq counts the messages of one stream from 1.
	Seq    uint64    `json:"seq"`
	At     time.Time `json:"at"`
	Name   string    `json:"name"`
	Epoch  string    `json:"epoch"`
	Role   string    `json:"role"`
	Health string    `json:"health"` // ok, loading or draining
	// Failing is why the worker expects to fail soon, "" where it does not.
	Failing     string              `json:"failing,omitempty"`
	Model       string              `json:"model,omitempty"`
	Fingerprint *engine.Fingerprint `json:"fingerprint,omitempty"`
	Context     int                 `json:"context,omitempty"` // most tokens of one sequence
	MaxSeqs     int                 `json:"max_seqs,omitempty"`
	// KVBytesPerToken is what a token weighs in a hand-off.
	KVBytesPerToken int `json:"kv_bytes_per_token,omitempty"`
	Load
	Requests    []Request   `json:"requests"` // all in flight, in order of arrival
	KeysAdded   []string    `json:"keys_added,omitempty"`
	KeysEvicted []string    `json:"keys_evicted,omitempty"`
	Transfers   []Transfer  `json:"transfers,omitempty"`
	Cost        *cost.Model `json:"cost,omitempty"`
}

// Load is what the step loop knows after each step.
type Load struct {
	Running              int     `json:"running"` // requests that have a sequence
	Waiting              int     `json:"waiting"`
	PrefillTokensWaiting int     `json:"prefill_tokens_waiting"` // prompt tokens not computed yet, of all requests
	DecodeCtxTokens      int     `json:"decode_ctx_tokens"`      // tokens that decoding sequences hold
	KVBlockSize          int     `json:"kv_block_size"`          // tokens
	KVBlocksTotal        int     `json:"kv_blocks_total"`
	KVBlocksUsed         int     `json:"kv_blocks_used"` // by requests and by the prefix cache
	CachedBlocks         int     `json:"cached_blocks"`  // of them, by the prefix cache alone
	PrefixQueries        uint64  `json:"prefix_queries"` // prompt tokens looked up, since the start
	PrefixHits           uint64  `json:"prefix_hits"`    // of them found
	HitRate              float64 `json:"hit_rate"`       // of recent lookups, 0 to 1
	Steps                uint64  `json:"steps"`          // so many, since the start
	StepMS               float64 `json:"step_ms"`        // mean of recent ones
	ModelMS              float64 `json:"model_ms"`       // what the cost model says of them; 0 without one
	MigratedIn           uint64  `json:"migrated_in"`    // running requests taken over from other workers with their KV, since the start
	DowntimeMS           float64 `json:"downtime_ms"`    // mean of recent ones: from the stop there to the next token here
}

// Phase is how far a request is.
type Phase string

// Values of Phase.
const (
	Waiting Phase = "waiting" // has no sequence
	Prefill Phase = "prefill" // its prompt is being computed
	Decode  Phase = "decode"
)

// Request is one request in flight.
type Request struct {
	Operation    string `json:"operation,omitempty"`
	Phase        Phase  `json:"phase"`
	PromptTokens int    `json:"prompt_tokens"`
	Generated    int    `json:"generated"`
}

// Transfer sums the hand-offs pulled from one peer since the start.
type Transfer struct {
	Peer     string  `json:"peer"` // host:port of its endpoint
	Pulls    int     `json:"pulls"`
	Failures int     `json:"failures"`
	Bytes    int64   `json:"bytes"`
	Seconds  float64 `json:"seconds"` // of successful pulls, without the dial
	// Recent is nil where the last pull is long ago.
	Recent *Pulls `json:"recent,omitempty"`
}
