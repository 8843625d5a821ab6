// Package engine is the contract of a model runner that Weir's own batch loop
// drives. The loop (engine/worker) owns the batch and the sequences; a runner
// computes. Implementations: engine/llama (llama.cpp) and engine/moe.
package engine

import (
	"errors"
	"sync/atomic"
)

// Token is an index into the model's vocabulary.
type Token = int32

// Seq numbers one sequence of the runner's KV cache, 0 <= Seq < Info.MaxSeqs.
// The caller owns the numbering; a runner never reuses a sequence by itself.
type Seq int32

// Errors that a caller decides on. Implementations wrap them.
var (
	// ErrKVFull says that the KV cache has no room for the step's tokens. The
	// sequences are as they were before the step.
	ErrKVFull = errors.New("kv cache is full")
	// ErrStopped says that a step was left before its end: see Stopper. The
	// sequences are as they were before the step.
	ErrStopped = errors.New("step was stopped")
	// ErrKVFormat says that imported KV bytes are damaged or of another format.
	// The destination sequence is empty afterwards.
	ErrKVFormat = errors.New("kv bytes do not fit this runner")
	// ErrModel says that a model file is missing, damaged or of an unknown kind.
	ErrModel = errors.New("model cannot be loaded")
	// ErrLibrary says that the inference library is missing or does not match.
	// Its message names the command to run.
	ErrLibrary = errors.New("inference library cannot be used")
)

// Fingerprint tells whether KV bytes of one runner mean the same to another.
// All three parts must be equal.
type Fingerprint struct {
	Weights string `json:"weights"`   // SHA-256 of the model file, hex
	Runner  string `json:"runner"`    // name and version, e.g. "llama.cpp/v0.5.0"
	KV      string `json:"kv_format"` // element types and layout, e.g. "f16/f16"
}

// String joins the parts in a fixed order, for use as a key.
func (f Fingerprint) String() string { return f.Weights + ":" + f.Runner + ":" + f.KV }

// Info describes a loaded model. It does not change during a runner's life.
type Info struct {
	Name            string // model name as served, e.g. "hub-edge"
	Arch            string // GGUF architecture, e.g. "llama", "qwen3moe"
	Layers          int
	Vocab           int // length of one logits row
	Context         int // most tokens in one sequence
	MaxSeqs         int // most sequences alive at a time
	MaxBatch        int // most tokens in one step, over all spans
	KVTokens        int // most tokens in the whole KV cache, over all sequences
	KVBytesPerToken int
	// SharedKV says that every sequence's attention runs over what all sequences
	// hold: idle ones cost time.
	SharedKV bool
	// KVWhole says that a sequence's KV is exported in one part only.
	KVWhole     bool
	Params      int64
	BOS         Token // put before every prompt; -1 when the model wants none
	EOS         Token // -1 when the model has none
	Fingerprint Fingerprint
}

// Span is one sequence's share of a step: Tokens are appended at positions
// Pos, Pos+1, ... Pos must equal the number of tokens the sequence holds.
type Span struct {
	Seq    Seq
	Pos    int
	Tokens []Token
	// Logits asks for the logits row after the span's last token.
	Logits bool
}

// Runner computes steps of a model. Its methods are called from one goroutine
// at a time; Tokenize, Piece and Info may be called from any, at any time.
type Runner interface {
	// Info describes the model.
	Info() Info
	// Tokenize turns text into tokens. With special, markers such as "<s>" in
	// the text become their control tokens; never set it on user text. No BOS
	// or EOS is added.
	Tokenize(text string, special bool) ([]Token, error)
	// Piece appends the bytes that t stands for to dst. Control tokens append
	// nothing. A piece may be part of a UTF-8 sequence.
	Piece(dst []byte, t Token) []byte
	// IsEnd reports whether t ends a generation.
	IsEnd(t Token) bool
	// Step runs one batch. Row i of the result belongs to the i-th span that
	// has Logits set, has Info().Vocab values, and is valid until the next call
	// to Step, ImportKV or Close. On error no sequence has changed.
	Step(spans []Span) ([][]float32, error)
	// Copy makes dst hold the first n tokens of src, sharing memory where it can.
	// dst must be empty.
	Copy(dst, src Seq, n int) error
	// Forget drops the tokens of s from position n on; n = 0 empties it.
	Forget(s Seq, n int) error
	// ExportKV appends the KV of s from position from on to dst and returns it.
	// Where Info().KVWhole, from must be 0.
	ExportKV(dst []byte, s Seq, from int) ([]byte, error)
	// ImportKV fills the empty sequence s from parts that ExportKV made, in order
	// and without gaps from position 0 on, and returns how many tokens it holds
	// then. It never trusts them: damaged bytes give ErrKVFormat.
	ImportKV(s Seq, parts ...[]byte) (int, error)
	// Close frees the model. No method may be called afterwards.
	Close() error
}

// Rerouted is what a mixture-of-experts runner did with a sequence's tokens that
// routes them to other experts than the model's own choice.
type Rerouted struct {
	Choices int     // tokens times layers
	Changed int     // choices that are not the model's own
	Lost    float64 // sum over the choices of the share of score mass given up
}

// Add adds what was done later, or with another sequence.
func (r *Rerouted) Add(o Rerouted) {
	r.Choices, r.Changed, r.Lost = r.Choices+o.Choices, r.Changed+o.Changed, r.Lost+o.Lost
}

// Rerouter is implemented by runners that may re-route.
type Rerouter interface {
	// TakeRerouted tells what was done with s since it was last asked or emptied:
	// zero where routing is the model's own. It belongs to Runner's goroutine.
	TakeRerouted(s Seq) Rerouted
}

// Stopper is implemented by runners that can leave a step before its end.
type Stopper interface {
	// StopAt has Step fail with ErrStopped, within a small part of its work, while
	// flag is 1; otherwise it is 0. Any goroutine may set it.
	StopAt(flag *atomic.Uint32)
}

// Message is one turn of a chat.
type Message struct {
	Role    string // "system", "user", "assistant" or "tool"
	Content string
}

// Templater lays out a chat as a model's prompt. A Runner implements it where
// its model knows how.
type Templater interface {
	// ChatTokens gives the prompt of a chat by the model's chat template, BOS
	// included, ready for the assistant's next turn. With continueFinal the last
	// message is the assistant's and the prompt ends inside it. Contents never
	// become control tokens. It may be called from any goroutine.
	ChatTokens(messages []Message, continueFinal bool) ([]Token, error)
}
