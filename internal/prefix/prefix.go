// Package prefix names the prefixes of requests, so that a gateway, which has no
// tokenizer, can tell which worker holds the KV of how much of a request.
//
// A request's tools and messages, or its prompt, are written in one canonical
// form, cut into blocks of BlockBytes, and chained: a key is the first half of
// SHA-256 over the key before and the block. Two requests share a key exactly
// where they share all bytes up to it. The chain starts from the model's
// fingerprint and the tenant's salt, so that no tenant can find out by timing
// what another has asked. It is vLLM's block hash over text instead of tokens.
package prefix

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
)

// BlockBytes is how many canonical bytes a key stands for beyond the key before.
const BlockBytes = 64

// MaxKeys bounds a request's keys: what is longer is known by its first
// half mebibyte.
const MaxKeys = 8192

// Key names one prefix.
type Key [16]byte

// String is 32 hex digits.
func (k Key) String() string { return hex.EncodeToString(k[:]) }

// ParseKey reads String's form.
func ParseKey(s string) (Key, error) {
	var k Key
	if len(s) != 2*len(k) {
		return k, errors.New("a prefix key has 32 hex digits")
	}
	_, err := hex.Decode(k[:], []byte(s))
	return k, err
}

// Append appends the keys of a request's body, whose members must be valid
// JSON, to dst. An incomplete last block has no key. It allocates nothing but the
// result, save for objects of more than 16 members.
func Append(dst []Key, fingerprint, salt string, body map[string]json.RawMessage) []Key {
	c := chain{keys: dst, most: len(dst) + MaxKeys}
	c.start(fingerprint, salt)
	if messages, chat := body["messages"]; chat {
		c.byte('c')
		c.value(body["tools"])
		c.value(messages)
	} else {
		c.byte('t')
		c.value(body["prompt"])
	}
	return c.keys
}

// chain cuts canonical bytes into blocks.
type chain struct {
	keys []Key
	most int
	buf  [len(Key{}) + BlockBytes]byte // the key before, then the block
	n    int                           // bytes of the block
}

func (c *chain) start(fingerprint, salt string) {
	h := sha256.New()
	h.Write([]byte("weir prefix 1\x00" + fingerprint + "\x00" + salt))
	var sum [sha256.Size]byte
	copy(c.buf[:], h.Sum(sum[:0])[:len(Key{})])
}

// full says that no more keys are wanted.
func (c *chain) full() bool { return len(c.keys) >= c.most }

func (c *chain) byte(b byte) {
	c.buf[len(Key{})+c.n] = b
	if c.n++; c.n == BlockBytes {
		c.cut()
	}
}

func (c *chain) bytes(b []byte) {
	for len(b) > 0 && !c.full() {
		n := copy(c.buf[len(Key{})+c.n:], b)
		b = b[n:]
		if c.n += n; c.n == BlockBytes {
			c.cut()
		}
	}
}

// cut ends a block.
func (c *chain) cut() {
	c.n = 0
	if c.full() {
		return
	}
	sum := sha256.Sum256(c.buf[:])
	k := Key(sum[:len(Key{})])
	copy(c.buf[:], k[:])
	c.keys = append(c.keys, k)
}
