// Package kvcache remembers what each sequence of a runner holds, so that a new
// request begins with the KV of the longest prefix that some sequence has: that
// of a running request, or of one that has ended and whose sequence nobody has
// needed since. It keeps the books; the step loop moves the KV.
//
// A sequence is busy (pinned) while a request runs on it, else idle, and the
// idle one that was used longest ago goes first (LRU). Requests share KV only
// within one salt.
package kvcache

import (
	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/internal/prefix"
)

// Watcher is told which prefix keys the cache comes to hold and lets go. A key
// may be held more than once.
type Watcher interface {
	Hold(keys []prefix.Key)
	Drop(keys []prefix.Key)
}

// Content is what a sequence holds.
type Content struct {
	Salt   string
	Tokens []engine.Token // in the KV cache; the cache keeps the slice
	// Keys are those of the request whose prompt the first Prompt tokens are.
	// Each is taken to stand for an equal share of the prompt.
	Keys   []prefix.Key
	Prompt int
}

// held are the keys whose share of the prompt lies within the tokens.
func (c *Content) held() []prefix.Key {
	if len(c.Tokens) >= c.Prompt {
		return c.Keys
	}
	return c.Keys[:len(c.Keys)*len(c.Tokens)/c.Prompt]
}

// Entry is one sequence that holds something.
type Entry struct {
	Seq engine.Seq
	Content
	busy bool
	used uint64 // when it was last let go
}

// Idle reports whether no request runs on the sequence.
func (e *Entry) Idle() bool { return !e.busy }

// Cache is for one goroutine.
type Cache struct {
	watch   Watcher
	entries []*Entry
	clock   uint64
}

// New returns an empty Cache.
func New(w Watcher) *Cache { return &Cache{watch: w} }

// Match finds the sequence that shares the longest prefix with tokens, and how
// many tokens that is. Among equals an idle one with little behind the prefix
// comes first. It returns nil and 0 when none shares any.
func (c *Cache) Match(salt string, tokens []engine.Token) (best *Entry, n int) {
	for _, e := range c.entries {
		if e.Salt != salt || len(e.Tokens) < n {
			continue
		}
		switch m := common(e.Tokens, tokens); {
		case m > n:
			best, n = e, m
		case m == n && n > 0 && (best.busy || !e.busy && len(e.Tokens) < len(best.Tokens)):
			best = e
		}
	}
	return best, n
}

func common(a, b []engine.Token) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// Put enters a sequence on which a request runs.
func (c *Cache) Put(s engine.Seq, content Content) *Entry {
	e := &Entry{Seq: s, Content: content, busy: true}
	c.watch.Hold(e.held())
	c.entries = append(c.entries, e)
	return e
}

// Claim gives an idle sequence to a request that goes on after its first n
// tokens.
func (c *Cache) Claim(e *Entry, n int) {
	e.busy = true
	less := e.Content
	less.Tokens = less.Tokens[:n]
	c.Update(e, less)
}

// Update changes what a busy sequence holds.
func (c *Cache) Update(e *Entry, content Content) {
	c.watch.Hold(content.held()) // first, so that what stays is never let go
	c.watch.Drop(e.held())
	e.Content = content
}

// LetGo makes a busy sequence idle.
func (c *Cache) LetGo(e *Entry) {
	c.clock++
	e.busy, e.used = false, c.clock
}

// Remove forgets a sequence.
func (c *Cache) Remove(e *Entry) {
	for i, x := range c.entries {
		if x == e {
			c.watch.Drop(e.held())
			c.entries = append(c.entries[:i], c.entries[i+1:]...)
			return
		}
	}
}

// Oldest is the idle sequence that was used longest ago, other than keep. nil
// when there is none.
func (c *Cache) Oldest(keep *Entry) (oldest *Entry) {
	for _, e := range c.entries {
		if e.Idle() && e != keep && (oldest == nil || e.used < oldest.used) {
			oldest = e
		}
	}
	return oldest
}

// IdleLoad counts the idle sequences and what they hold, in tokens and in
// blocks of the given size.
func (c *Cache) IdleLoad(block int) (seqs, tokens, blocks int) {
	for _, e := range c.entries {
		if e.Idle() {
			seqs++
			tokens += len(e.Tokens)
			blocks += (len(e.Tokens) + block - 1) / block
		}
	}
	return seqs, tokens, blocks
}
