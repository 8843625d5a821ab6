package route

import "time"

// Role is what an instance is for.
type Role string

// Roles of instances.
const (
	Mixed   Role = "mixed" // prefills and decodes
	Prefill Role = "prefill"
	Decode  Role = "decode"
)

// Valid reports whether r is one of the roles.
func (r Role) Valid() bool { return r == Mixed || r == Prefill || r == Decode }

// Trigger says why a policy is asked.
type Trigger uint8

// Triggers of routing decisions.
const (
	Arrival Trigger = iota // a request's first attempt
	Retry                  // an attempt failed before its first token
)

// Observation is all that a routing policy may know. It is a value: policies
// do not change it. Inst is sorted by ID, so equal observations give equal
// decisions.
type Observation struct {
	// Now is the time since the observer's own start; ages are measured
	// against it.
	Now     time.Duration
	Trigger Trigger
	Req     RequestView
	Inst    []InstanceView
	// Seed breaks ties. The gateway derives it from the operation, so that
	// equally loaded instances share the work.
	Seed uint64
}

// RequestView is what is known of a request before a model has seen it.
type RequestView struct {
	Model string // name of the pool that serves the request
	// PromptBytes is the prompt's size; a gateway has no tokenizer.
	PromptBytes int
	// MaxTokens bounds the answer in tokens; 0 is unknown.
	MaxTokens int
	Session   string
	// Handoff is the prefill process that already holds the request's KV for an
	// unread hand-off, or zero.
	Handoff Process
	// FailedPrefill and FailedDecode are the processes that failed this request
	// at that stage, or that it has just left. A whole request counts as decode.
	FailedPrefill, FailedDecode []Process
	// Resume says that the client has seen the answer's beginning: only an
	// instance that can go on with it will do.
	Resume bool
	// Weights names those that the answer's beginning comes from; "" is unknown.
	Weights string
	// Moved says that the instance it ran at has given it away with its KV: there
	// is no prompt to prefill.
	Moved bool
	// TPOT is the time per output token that is wanted; 0 is the policy's default.
	TPOT time.Duration
	// Class is what is known of requests that begin alike.
	Class ClassView
}

// Process is one life of an instance. The next one under its name has failed
// nobody and holds nothing.
type Process struct {
	ID    string
	Epoch string // "" where the engine has none
}

// InstanceView is one instance as its observer last knew it.
type InstanceView struct {
	ID    string // stable name
	Epoch string // random per process start
	Role  Role
	Model string
	// Ready is false while the instance is down, loading, draining or unknown.
	Ready bool
	// Context is the most tokens of prompt and answer; 0 is unknown.
	Context int
	// KVFormat names what KV bytes the instance writes and reads; two
	// instances exchange KV only if it is equal. "" is unknown.
	KVFormat string
	// Weights names the weights that it computes with, tokenizer included; "" is
	// unknown.
	Weights string
	// Apart says that the instance gives no KV to others and takes none: a worker
	// without certificates for it.
	Apart bool
	// SeenAt is when the instance was last heard of, on Observation.Now's clock.
	SeenAt   time.Duration
	InFlight InFlight
	// Suspect asks to leave the instance alone while another can do the work.
	Suspect bool
	// RestsUntil is until when it has asked for no new work (Retry-After), on
	// Observation.Now's clock.
	RestsUntil time.Duration
	// Weight is the share of a fair load that the instance should take, while it
	// comes back from a failure (slow start); 0 counts as 1.
	Weight float64
	// Resumes says that it can go on with an answer that another began.
	Resumes bool
	// Load is its own report, Unseen the part of InFlight that the report does
	// not hold yet.
	Load   Load
	Unseen InFlight
	// HitBytes is how much of this request's prompt its prefix cache holds.
	HitBytes int
	Cost     Cost // nil is unknown
	// KVAddr is where the instance gives KV to others; Copies what it has taken to
	// fetch KV from each of them by their KVAddr, and from all (""). Empty is unknown.
	KVAddr string
	Copies map[string]Copy
}

// pullMs predicts the time to pull the KV of n tokens from another instance; 0
// where nothing was pulled yet.
func (in *InstanceView) pullMs(from *InstanceView, n int) float64 {
	c, known := in.Copies[from.KVAddr]
	if !known {
		c = in.Copies[""]
	}
	return c.Predict(n)
}

// Load is what an instance last said of its work.
type Load struct {
	At            time.Duration // when it was heard, on Observation.Now's clock; 0 is never
	Running       int           // requests
	Waiting       int           // requests
	PrefillTokens int           // of prompts not computed yet
	DecodeContext int           // tokens that decoding requests hold
	KVTokens      int           // room for so many; 0 is unknown
	KVFree        int           // of them, not held by a request
}

// Cost predicts an instance's steps.
type Cost interface {
	// StepMs is the time of a step in milliseconds: decodes sequences with one
	// token each that hold context tokens over all, and prefill prompt tokens
	// with pairs tokens before them over all.
	StepMs(decodes, prefill, context, pairs int) float64
}

// process is which life of the instance is seen.
func (in *InstanceView) process() Process { return Process{in.ID, in.Epoch} }

// weight is Weight with its default.
func (in *InstanceView) weight() float64 {
	if in.Weight <= 0 {
		return 1
	}
	return in.Weight
}

// InFlight is the observer's own ledger of what it sent to an instance and has
// not seen end. Unlike anything reported, it has no age.
type InFlight struct {
	Requests    int `json:"requests"`     // legs under way
	PromptBytes int `json:"prompt_bytes"` // of legs that still prefill
}
