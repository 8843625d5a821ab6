package state

import (
	"slices"
	"sync"

	"github.com/weirhq/weir/internal/prefix"
)

// maxLog is how many changes of keys the board remembers. A reader that has
// missed more gets all keys anew.
const maxLog = 1 << 14

// Board holds a worker's state. Writers are the step loop and the handlers;
// none of them ever waits for a reader. Safe for concurrent use.
type Board struct {
	mu      sync.Mutex
	version uint64 // of everything
	load    Load
	serial  uint64
	tickets map[*Ticket]struct{}
	keys    map[prefix.Key]int // how many sequences hold it
	log     []prefix.Key       // keys that came or went, the oldest first
	logged  uint64             // how many there have been
}

// NewBoard returns an empty Board.
func NewBoard() *Board {
	return &Board{tickets: map[*Ticket]struct{}{}, keys: map[prefix.Key]int{}}
}

// SetLoad tells the load after a step.
func (b *Board) SetLoad(l Load) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.load != l {
		b.load = l
		b.version++
	}
}

// Touch makes readers look again: something that they add themselves has
// changed.
func (b *Board) Touch() {
	b.mu.Lock()
	b.version++
	b.mu.Unlock()
}

// InFlight is how many requests have begun and not ended.
func (b *Board) InFlight() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.tickets)
}

// Hold implements kvcache.Watcher.
func (b *Board) Hold(keys []prefix.Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, k := range keys {
		if b.keys[k]++; b.keys[k] == 1 {
			b.note(k)
		}
	}
}

// Drop implements kvcache.Watcher.
func (b *Board) Drop(keys []prefix.Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, k := range keys {
		if b.keys[k]--; b.keys[k] <= 0 {
			delete(b.keys, k)
			b.note(k)
		}
	}
}

// note logs that a key came or went.
func (b *Board) note(k prefix.Key) {
	if len(b.log) == maxLog { // rarely: half of it goes at once
		b.log = append(b.log[:0], b.log[maxLog/2:]...)
	}
	b.log = append(b.log, k)
	b.logged++
	b.version++
}

// Ticket is a request in flight.
type Ticket struct {
	b         *Board
	serial    uint64
	operation string
	phase     Phase
	prompt    int
	generated int
}

// Begin enters a request, which waits.
func (b *Board) Begin(operation string, prompt int) *Ticket {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.serial++
	t := &Ticket{b: b, serial: b.serial, operation: operation, phase: Waiting, prompt: prompt}
	b.tickets[t] = struct{}{}
	b.version++
	return t
}

// Set tells how far the request is.
func (t *Ticket) Set(p Phase, generated int) {
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	t.phase, t.generated = p, generated
	t.b.version++
}

// End removes the request.
func (t *Ticket) End() {
	t.b.mu.Lock()
	defer t.b.mu.Unlock()
	delete(t.b.tickets, t)
	t.b.version++
}

// requests lists what is in flight, in order of arrival.
func (b *Board) requests() []Request {
	all := make([]*Ticket, 0, len(b.tickets))
	for t := range b.tickets {
		all = append(all, t)
	}
	slices.SortFunc(all, func(x, y *Ticket) int { return int(int64(x.serial) - int64(y.serial)) })
	out := make([]Request, len(all))
	for i, t := range all {
		out[i] = Request{Operation: t.operation, Phase: t.phase, PromptTokens: t.prompt, Generated: t.generated}
	}
	return out
}

// Reader makes the messages of one stream. For one goroutine.
type Reader struct {
	b       *Board
	seq     uint64
	version uint64
	logged  uint64 // changes of keys that it knows
}

// NewReader returns a Reader whose first message is full.
func (b *Board) NewReader() *Reader { return &Reader{b: b} }

// Changed reports whether there is news since the last message.
func (r *Reader) Changed() bool {
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	return r.seq == 0 || r.version != r.b.version
}

// Next makes a message of what is known now. The caller adds who the worker is.
func (r *Reader) Next() Message {
	b := r.b
	b.mu.Lock()
	defer b.mu.Unlock()
	r.seq++
	m := Message{Seq: r.seq, Load: b.load, Requests: b.requests()}
	if missed := b.logged - r.logged; r.seq == 1 || missed > uint64(len(b.log)) {
		m.Full = true
		for k := range b.keys {
			m.KeysAdded = append(m.KeysAdded, k.String())
		}
	} else {
		b.changes(&m, b.log[len(b.log)-int(missed):])
	}
	r.version, r.logged = b.version, b.logged
	return m
}

// changes sorts keys that came or went by what became of them.
func (b *Board) changes(m *Message, log []prefix.Key) {
	seen := make(map[prefix.Key]struct{}, len(log))
	for _, k := range log {
		if _, done := seen[k]; done {
			continue
		}
		seen[k] = struct{}{}
		if b.keys[k] > 0 {
			m.KeysAdded = append(m.KeysAdded, k.String())
		} else {
			m.KeysEvicted = append(m.KeysEvicted, k.String())
		}
	}
}
