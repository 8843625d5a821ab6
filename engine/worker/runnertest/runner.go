// Package runnertest is a small deterministic engine.Runner in memory, for
// tests of what drives a runner. Its logits depend on every token of the
// sequence, so a lost, doubled or foreign token changes the text at once. It
// checks its caller: a step that breaks the contract is an error.
package runnertest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/weirhq/weir/engine"
)

// Token numbers, as in the bundled models: byte b is firstByte + b.
const (
	BOS       engine.Token = 1
	EOS       engine.Token = 2
	firstByte              = 3
	vocab                  = 259
)

// Options set a Runner's sizes and let a test look into it.
type Options struct {
	Name     string // "toy" when empty
	Context  int    // 512 when 0
	MaxSeqs  int    // 8 when 0
	MaxBatch int    // 64 when 0
	KVTokens int    // Context * MaxSeqs when 0
	// KVBytesPerToken is how large exported KV is; 8 when less.
	KVBytesPerToken int
	// BeforeStep, when set, runs first in Step; its error fails the step.
	BeforeStep func([]engine.Span) error
	// Endless models never choose EOS.
	Endless bool
	// SharedKV is told in Info; it changes nothing here.
	SharedKV bool
}

// Runner implements engine.Runner and engine.Templater.
type Runner struct {
	o    Options
	mu   sync.Mutex // Tokens may be read while the loop runs
	seqs [][]engine.Token
	rows []float32
	stop *atomic.Uint32
}

var (
	_ engine.Runner    = (*Runner)(nil)
	_ engine.Templater = (*Runner)(nil)
	_ engine.Stopper   = (*Runner)(nil)
)

// New returns a Runner with empty sequences.
func New(o Options) *Runner {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	if o.Name == "" {
		o.Name = "toy"
	}
	def(&o.Context, 512)
	def(&o.MaxSeqs, 8)
	def(&o.MaxBatch, 128)
	def(&o.KVTokens, o.Context*o.MaxSeqs)
	o.KVBytesPerToken = max(o.KVBytesPerToken, 8)
	return &Runner{o: o, seqs: make([][]engine.Token, o.MaxSeqs), stop: new(atomic.Uint32)}
}

// Info implements engine.Runner.
func (r *Runner) Info() engine.Info {
	return engine.Info{Name: r.o.Name, Arch: "toy", Layers: 1, Vocab: vocab, Context: r.o.Context, MaxSeqs: r.o.MaxSeqs,
		MaxBatch: r.o.MaxBatch, KVTokens: r.o.KVTokens, KVBytesPerToken: r.o.KVBytesPerToken, BOS: BOS, EOS: EOS, Params: 1, SharedKV: r.o.SharedKV,
		Fingerprint: engine.Fingerprint{Weights: strings.Repeat("0", 64), Runner: "toy/1", KV: "tokens"}}
}

// Tokens is how many tokens all sequences hold.
func (r *Runner) Tokens() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.total()
}

// Tokenize implements engine.Runner: one token per byte.
func (r *Runner) Tokenize(text string, _ bool) ([]engine.Token, error) {
	out := make([]engine.Token, len(text))
	for i, b := range []byte(text) {
		out[i] = firstByte + engine.Token(b)
	}
	return out, nil
}

// Piece implements engine.Runner.
func (r *Runner) Piece(dst []byte, t engine.Token) []byte {
	if t < firstByte || t >= vocab {
		return dst
	}
	return append(dst, byte(t-firstByte))
}

// IsEnd implements engine.Runner.
func (r *Runner) IsEnd(t engine.Token) bool { return t == EOS }

// ChatTokens implements engine.Templater: "<s>role: content\n" per message and
// "assistant: ".
func (r *Runner) ChatTokens(messages []engine.Message, continueFinal bool) ([]engine.Token, error) {
	var b bytes.Buffer
	for i, m := range messages {
		fmt.Fprintf(&b, "%s: %s", m.Role, m.Content)
		if !continueFinal || i < len(messages)-1 {
			b.WriteByte('\n')
		}
	}
	if !continueFinal {
		b.WriteString("assistant: ")
	}
	t, err := r.Tokenize(b.String(), false)
	return append([]engine.Token{BOS}, t...), err
}

// Step implements engine.Runner.
func (r *Runner) Step(spans []engine.Span) ([][]float32, error) {
	if r.o.BeforeStep != nil {
		if err := r.o.BeforeStep(spans); err != nil {
			return nil, err
		}
	}
	if r.Stopped() {
		return nil, engine.ErrStopped
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.check(spans); err != nil {
		return nil, err
	}
	n := 0
	for _, s := range spans {
		r.seqs[s.Seq] = append(r.seqs[s.Seq], s.Tokens...)
		if s.Logits {
			n++
		}
	}
	r.rows = slices.Grow(r.rows[:0], n*vocab)[:n*vocab]
	rows := make([][]float32, 0, n)
	for _, s := range spans {
		if s.Logits {
			row := r.rows[len(rows)*vocab:][:vocab]
			r.logits(row, r.seqs[s.Seq])
			rows = append(rows, row)
		}
	}
	return rows, nil
}

// StopAt implements engine.Stopper: steps end after BeforeStep.
func (r *Runner) StopAt(flag *atomic.Uint32) { r.stop = flag }

// Stopped reports whether the step that runs is to end.
func (r *Runner) Stopped() bool { return r.stop.Load() != 0 }

// held returns the sequence, or an error for a number that none has.
func (r *Runner) held(s engine.Seq) ([]engine.Token, error) {
	if s < 0 || int(s) >= len(r.seqs) {
		return nil, fmt.Errorf("runnertest: no sequence %d", s)
	}
	return r.seqs[s], nil
}

func (r *Runner) total() (n int) {
	for _, s := range r.seqs {
		n += len(s)
	}
	return n
}

func (r *Runner) check(spans []engine.Span) error {
	batch := 0
	seen := map[engine.Seq]bool{}
	wrong := func(t engine.Token) bool { return t < 0 || t >= vocab }
	for _, s := range spans {
		seq, err := r.held(s.Seq)
		if err != nil {
			return err
		}
		if seen[s.Seq] || s.Pos != len(seq) || len(s.Tokens) == 0 || slices.ContainsFunc(s.Tokens, wrong) {
			return fmt.Errorf("runnertest: span of sequence %d at %d with %d tokens breaks the contract", s.Seq, s.Pos, len(s.Tokens))
		}
		if s.Pos+len(s.Tokens) > r.o.Context {
			return fmt.Errorf("runnertest: sequence %d grows over the context", s.Seq)
		}
		seen[s.Seq] = true
		batch += len(s.Tokens)
	}
	if batch > r.o.MaxBatch {
		return fmt.Errorf("runnertest: %d tokens in a step, at most %d", batch, r.o.MaxBatch)
	}
	if r.total()+batch > r.o.KVTokens {
		return fmt.Errorf("runnertest: %w", engine.ErrKVFull)
	}
	return nil
}

// logits fills row from a hash of the sequence. Printable ASCII and EOS get
// values from 0 to 8 (EOS slightly more), other bytes about -20.
func (r *Runner) logits(row []float32, seq []engine.Token) {
	h := uint64(0xcbf29ce484222325)
	for _, t := range seq {
		h = (h ^ uint64(t)) * 0x100000001b3
	}
	for t := range row {
		x := mix(h + uint64(t)*0x9e3779b97f4a7c15)
		row[t] = float32(x>>40) / (1 << 21)
		if b := t - firstByte; (b < ' ' || b > '~') && t != int(EOS) || t == int(EOS) && r.o.Endless {
			row[t] -= 28
		} else if t == int(EOS) {
			row[t] += 0.3 // answers of about 20 tokens
		}
	}
}

func mix(x uint64) uint64 { // splitmix64's finalizer
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Copy implements engine.Runner.
func (r *Runner) Copy(dst, src engine.Seq, n int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	to, err1 := r.held(dst)
	from, err2 := r.held(src)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if len(to) != 0 || n < 0 || n > len(from) || dst == src {
		return fmt.Errorf("runnertest: copy of %d tokens from %d into %d", n, src, dst)
	}
	r.seqs[dst] = slices.Clone(from[:n])
	return nil
}

// Forget implements engine.Runner.
func (r *Runner) Forget(s engine.Seq, n int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	seq, err := r.held(s)
	if err != nil || n < 0 {
		return errors.Join(err, fmt.Errorf("runnertest: forget sequence %d from %d", s, n))
	}
	r.seqs[s] = seq[:min(n, len(seq))]
	return nil
}

// Exported KV: magic, CRC-32 of the rest, position of the first token, then per
// token its number and zeros.
const (
	magic    = "toykv/2\x00"
	kvHeader = len(magic) + 8
)

// ExportKV implements engine.Runner.
func (r *Runner) ExportKV(dst []byte, s engine.Seq, from int) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	seq, err := r.held(s)
	if err != nil {
		return dst, err
	}
	if from < 0 || from > len(seq) {
		return dst, fmt.Errorf("runnertest: export from %d of %d", from, len(seq))
	}
	body := make([]byte, 4+(len(seq)-from)*r.o.KVBytesPerToken)
	binary.LittleEndian.PutUint32(body, uint32(from))
	for i, t := range seq[from:] {
		binary.LittleEndian.PutUint32(body[4+i*r.o.KVBytesPerToken:], uint32(t))
	}
	dst = binary.LittleEndian.AppendUint32(append(dst, magic...), crc32.ChecksumIEEE(body))
	return append(dst, body...), nil
}

// ImportKV implements engine.Runner.
func (r *Runner) ImportKV(s engine.Seq, parts ...[]byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	seq, err := r.held(s)
	if err != nil {
		return 0, err
	}
	if len(seq) != 0 {
		return 0, fmt.Errorf("runnertest: import into sequence %d, which is in use", s)
	}
	for _, data := range parts {
		if seq, err = r.appendPart(seq, data); err != nil {
			return 0, err
		}
	}
	switch {
	case len(seq) > r.o.Context:
		return 0, fmt.Errorf("runnertest: %d tokens in a context of %d: %w", len(seq), r.o.Context, engine.ErrKVFormat)
	case r.total()+len(seq) > r.o.KVTokens:
		return 0, fmt.Errorf("runnertest: %w", engine.ErrKVFull)
	}
	r.seqs[s] = seq
	return len(seq), nil
}

// appendPart appends the tokens of exported KV.
func (r *Runner) appendPart(seq []engine.Token, data []byte) ([]engine.Token, error) {
	if len(data) < kvHeader || string(data[:len(magic)]) != magic || (len(data)-kvHeader)%r.o.KVBytesPerToken != 0 {
		return nil, fmt.Errorf("runnertest: %d bytes: %w", len(data), engine.ErrKVFormat)
	}
	sum, body := data[len(magic):], data[len(magic)+4:]
	if crc32.ChecksumIEEE(body) != binary.LittleEndian.Uint32(sum) || int(binary.LittleEndian.Uint32(body)) != len(seq) {
		return nil, fmt.Errorf("runnertest: part at %d: %w", len(seq), engine.ErrKVFormat)
	}
	for body = body[4:]; len(body) > 0; body = body[r.o.KVBytesPerToken:] {
		seq = append(seq, engine.Token(binary.LittleEndian.Uint32(body)))
	}
	return seq, nil
}

// Close implements engine.Runner.
func (r *Runner) Close() error { return nil }
