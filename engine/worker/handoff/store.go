package handoff

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"sync"
	"time"

	"github.com/weirhq/weir/engine/worker/loop"
)

// Errors of a Store.
var (
	// ErrFull says that the hand-offs kept already take all the room.
	ErrFull = errors.New("hand-off store is full")
	// ErrGone says that there is no such hand-off for this operation: it was
	// never there, was read, or has expired. Which of them is not told.
	ErrGone = errors.New("hand-off is gone")
)

// Handle names a hand-off. Who knows it may read it once.
type Handle [16]byte

// String is 32 hex digits.
func (h Handle) String() string { return hex.EncodeToString(h[:]) }

// ParseHandle reads String's form.
func ParseHandle(s string) (Handle, error) {
	var h Handle
	if len(s) != 2*len(h) {
		return h, errors.New("a handle has 32 hex digits")
	}
	_, err := hex.Decode(h[:], []byte(s))
	return h, err
}

// Store keeps hand-offs until they are read or expire. Safe for concurrent use.
type Store struct {
	max     int64
	ttl     time.Duration
	expired func() // told of each hand-off that nobody read

	mu      sync.Mutex
	bytes   int64
	entries map[Handle]*entry
}

type entry struct {
	operation string
	item      *Item
	timer     *time.Timer
}

// Item is a hand-off with what its reader needs to check it.
type Item struct {
	loop.Handoff
	Header Header
}

func (i *Item) size() int64 { return i.Header.payload() }

// NewStore returns a Store of at most maxBytes, which forgets a hand-off after
// ttl and then calls expired.
func NewStore(maxBytes int64, ttl time.Duration, expired func()) *Store {
	return &Store{max: maxBytes, ttl: ttl, expired: expired, entries: map[Handle]*entry{}}
}

// Put keeps a hand-off for the operation. It fails with ErrFull.
func (s *Store) Put(operation string, item *Item) (Handle, time.Time, error) {
	var h Handle
	rand.Read(h[:])
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bytes+item.size() > s.max {
		return h, time.Time{}, ErrFull
	}
	s.bytes += item.size()
	e := &entry{operation: operation, item: item}
	e.timer = time.AfterFunc(s.ttl, func() { s.expire(h, e) })
	s.entries[h] = e
	return h, time.Now().Add(s.ttl), nil
}

func (s *Store) expire(h Handle, e *entry) {
	s.mu.Lock()
	here := s.entries[h] == e
	if here {
		delete(s.entries, h)
		s.bytes -= e.item.size()
	}
	s.mu.Unlock()
	if here && s.expired != nil {
		s.expired()
	}
}

// Take gives a hand-off to its only reader. The room it takes is free again
// when done is called.
func (s *Store) Take(h Handle, operation string) (item *Item, done func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[h]
	if e == nil || e.operation != operation {
		return nil, nil, ErrGone
	}
	delete(s.entries, h)
	e.timer.Stop()
	return e.item, sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.bytes -= e.item.size()
	}), nil
}

// Bytes is how much room hand-offs take, those being read included.
func (s *Store) Bytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes
}

// Close forgets everything.
func (s *Store) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for h, e := range s.entries {
		e.timer.Stop()
		s.bytes -= e.item.size()
		delete(s.entries, h)
	}
}
