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
	// never there, was delivered, or has expired. Which of them is not told.
	ErrGone = errors.New("hand-off is gone")
)

// Handle names a hand-off. Who knows it and its operation may read it, until it
// has been delivered once.
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

// Store keeps hand-offs until they are delivered or their lease ends. A read that
// fails leaves the hand-off for another one. Safe for concurrent use.
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
	timer     *time.Timer // of the lease
	until     time.Time   // the lease's end
	over      bool        // the lease ended while it was being read
	reader    *reader     // who reads it now
}

// reader is one try to read a hand-off. stop ends it when another one takes its
// place.
type reader struct{ stop func() }

// NewHandle returns a handle that nobody can guess.
func NewHandle() (h Handle) {
	rand.Read(h[:])
	return h
}

// Item is a hand-off with what its reader needs to check it.
type Item struct {
	loop.Handoff
	Header Header
	// Starts are the positions at which the parts of KV begin, where it was sent
	// ahead in stages. Header is then that of the last part alone.
	Starts []int
}

// size is what the whole takes, in bytes.
func (i *Item) size() int64 {
	n := 4 * int64(len(i.Tokens)+len(i.Logits))
	for _, part := range i.KV {
		n += int64(len(part))
	}
	return n
}

// NewStore returns a Store of at most maxBytes, which forgets a hand-off after
// ttl and then calls expired.
func NewStore(maxBytes int64, ttl time.Duration, expired func()) *Store {
	return &Store{max: maxBytes, ttl: ttl, expired: expired, entries: map[Handle]*entry{}}
}

// Put keeps a hand-off for the operation under a new handle. It fails with
// ErrFull.
func (s *Store) Put(h Handle, operation string, item *Item) (expires time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bytes+item.size() > s.max {
		return time.Time{}, ErrFull
	}
	s.bytes += item.size()
	e := &entry{operation: operation, item: item, until: time.Now().Add(s.ttl)}
	e.timer = time.AfterFunc(s.ttl, func() { s.expire(h, e) })
	s.entries[h] = e
	return e.until, nil
}

func (s *Store) expire(h Handle, e *entry) {
	s.mu.Lock()
	here := s.entries[h] == e && !time.Now().Before(e.until) // not renewed while the timer waited for the lock
	if e.over = here && e.reader != nil; e.over {
		here = false // the end of the read decides
	}
	if here {
		s.forget(h, e)
	}
	s.mu.Unlock()
	if here && s.expired != nil {
		s.expired()
	}
}

// forget is for who holds the lock.
func (s *Store) forget(h Handle, e *entry) {
	delete(s.entries, h)
	e.timer.Stop()
	s.bytes -= e.item.size()
}

func (s *Store) find(h Handle, operation string) (*entry, error) {
	e := s.entries[h]
	if e == nil || e.operation != operation {
		return nil, ErrGone
	}
	return e, nil
}

// Take gives a hand-off to a reader. There is one at a time: who asks later is
// sent by a gateway that has given the earlier one up, which stop then ends. The
// reader calls done with whether it was delivered; until then the lease does not
// end.
func (s *Store) Take(h Handle, operation string, stop func()) (item *Item, done func(delivered bool), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, err := s.find(h, operation)
	if err != nil {
		return nil, nil, err
	}
	if e.reader != nil {
		e.reader.stop()
	}
	r := &reader{stop}
	e.reader = r
	return e.item, func(delivered bool) { s.done(h, e, r, delivered) }, nil
}

func (s *Store) done(h Handle, e *entry, r *reader, delivered bool) {
	s.mu.Lock()
	over := false
	if s.entries[h] == e && e.reader == r {
		e.reader = nil
		if over = e.over && !delivered; over || delivered {
			s.forget(h, e)
		}
	}
	s.mu.Unlock()
	if over && s.expired != nil {
		s.expired()
	}
}

// Renew begins the lease of a hand-off anew and returns its end.
func (s *Store) Renew(h Handle, operation string) (time.Time, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, err := s.find(h, operation)
	if err != nil {
		return time.Time{}, err
	}
	e.until = time.Now().Add(s.ttl)
	e.timer.Reset(s.ttl)
	e.over = false
	return e.until, nil
}

// Release forgets a hand-off that nobody will read any more. Who reads it now is
// stopped.
func (s *Store) Release(h Handle, operation string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, err := s.find(h, operation)
	if err != nil {
		return err
	}
	if e.reader != nil {
		e.reader.stop()
	}
	s.forget(h, e)
	return nil
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
		s.forget(h, e)
	}
}
