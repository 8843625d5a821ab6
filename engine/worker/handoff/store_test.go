package handoff

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/worker/loop"
)

func item(n int) *Item {
	return NewItem(loop.Handoff{Tokens: make([]engine.Token, 3), Logits: make([]float32, 5), KV: [][]byte{make([]byte, n-32)}}, engine.Fingerprint{Weights: "w"})
}

// put keeps an item under a new handle.
func (s *Store) put(operation string, it *Item) (Handle, time.Time, error) {
	h := NewHandle()
	expires, err := s.Put(h, operation, it)
	return h, expires, err
}

func unstopped() { panic("a reader was stopped") }

func TestStoreDeliversOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStore(1000, 30*time.Second, nil)
		defer s.Close()
		h, until, err := s.put("op", item(100))
		if err != nil || time.Until(until) != 30*time.Second || s.Bytes() != 100 {
			t.Fatalf("put: %v, until %v, %d bytes", err, until, s.Bytes())
		}
		if _, _, err := s.Take(h, "other", unstopped); !errors.Is(err, ErrGone) {
			t.Errorf("another operation: %v", err)
		}
		if _, _, err := s.Take(Handle{}, "op", unstopped); !errors.Is(err, ErrGone) {
			t.Errorf("another handle: %v", err)
		}
		it, done, err := s.Take(h, "op", unstopped)
		if err != nil || len(it.KV[0]) != 68 || s.Bytes() != 100 {
			t.Errorf("take: %v, %d bytes held while it is read", err, s.Bytes())
		}
		done(false)
		if _, done, err = s.Take(h, "op", unstopped); err != nil || s.Bytes() != 100 {
			t.Fatalf("after a failed read: %v, %d bytes", err, s.Bytes())
		}
		done(true)
		done(true)
		if s.Bytes() != 0 {
			t.Errorf("%d bytes after delivery", s.Bytes())
		}
		if _, _, err := s.Take(h, "op", unstopped); !errors.Is(err, ErrGone) {
			t.Errorf("after delivery: %v", err)
		}
	})
}

// TestStoreLaterReaderWins: the gateway sends another reader only when it has
// given the first one up.
func TestStoreLaterReaderWins(t *testing.T) {
	s := NewStore(1000, time.Hour, nil)
	defer s.Close()
	h, _, _ := s.put("op", item(100))
	stopped := 0
	_, first, err := s.Take(h, "op", func() { stopped++ })
	if err != nil {
		t.Fatal(err)
	}
	_, second, err := s.Take(h, "op", unstopped)
	if err != nil || stopped != 1 {
		t.Fatalf("second reader: %v, first stopped %d times", err, stopped)
	}
	first(true) // too late: its receipt does not count
	if s.Bytes() != 100 {
		t.Error("the first reader took what the second reads")
	}
	second(true)
	if s.Bytes() != 0 {
		t.Error("delivered and still there")
	}
}

func TestStoreLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		expired := 0
		s := NewStore(250, 30*time.Second, func() { expired++ })
		first, _, _ := s.put("a", item(100))
		time.Sleep(10 * time.Second)
		second, _, _ := s.put("b", item(100))
		if _, _, err := s.put("c", item(100)); !errors.Is(err, ErrFull) {
			t.Errorf("over the limit: %v", err)
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if _, _, err := s.Take(first, "a", unstopped); !errors.Is(err, ErrGone) || expired != 1 || s.Bytes() != 100 {
			t.Errorf("after 30 s: %v, %d expired, %d bytes", err, expired, s.Bytes())
		}
		if _, err := s.Renew(first, "a"); !errors.Is(err, ErrGone) {
			t.Errorf("renewed after its end: %v", err)
		}
		if _, err := s.Renew(second, "a"); !errors.Is(err, ErrGone) {
			t.Errorf("renewed by another operation: %v", err)
		}
		until, err := s.Renew(second, "b")
		if err != nil || time.Until(until) != 30*time.Second {
			t.Errorf("renewed until %v, %v", until, err)
		}
		time.Sleep(20 * time.Second)
		_, done, err := s.Take(second, "b", unstopped)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if expired != 1 || s.Bytes() != 100 {
			t.Errorf("one that is being read expired: %d, %d bytes", expired, s.Bytes())
		}
		done(false)
		if expired != 2 || s.Bytes() != 0 {
			t.Errorf("after a failed read beyond its lease: %d expired, %d bytes", expired, s.Bytes())
		}
		_, _, _ = s.put("d", item(100))
		s.Close()
		if s.Bytes() != 0 {
			t.Errorf("%d bytes after Close", s.Bytes())
		}
	})
}

// TestStoreKeepsCount does random things and compares the bytes held.
func TestStoreKeepsCount(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := NewStore(1000, time.Hour, nil)
		defer s.Close()
		type reading struct {
			h    Handle
			size int64
			done func(bool)
		}
		held, reads := map[Handle]int64{}, []reading{}
		want := int64(0)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "do") {
			case 3:
				for h, size := range held {
					if s.Release(h, "other") == nil || s.Release(h, "op") != nil {
						t.Fatal("release does not ask for the operation")
					}
					delete(held, h)
					want -= size
					break
				}
			case 0:
				it := item(rapid.IntRange(32, 400).Draw(t, "size"))
				h, _, err := s.put("op", it)
				if (err == nil) != (want+it.size() <= 1000) {
					t.Fatalf("put of %d at %d: %v", it.size(), want, err)
				}
				if err == nil {
					held[h] = it.size()
					want += it.size()
				}
			case 1:
				for h, size := range held {
					_, done, err := s.Take(h, "op", unstopped)
					if err != nil {
						t.Fatal(err)
					}
					delete(held, h)
					reads = append(reads, reading{h, size, done})
					break
				}
			case 2:
				if n := len(reads); n > 0 {
					r, delivered := reads[n-1], rapid.Bool().Draw(t, "delivered")
					r.done(delivered)
					if reads = reads[:n-1]; delivered {
						want -= r.size
					} else {
						held[r.h] = r.size
					}
				}
			}
			if s.Bytes() != want {
				t.Fatalf("%d bytes, want %d", s.Bytes(), want)
			}
		}
	})
}

func TestHandleText(t *testing.T) {
	h := Handle{0xab, 15: 0x01}
	if got, err := ParseHandle(h.String()); err != nil || got != h {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "ab", h.String() + "00", "zz" + h.String()[2:]} {
		if _, err := ParseHandle(bad); err == nil {
			t.Errorf("%q is a handle", bad)
		}
	}
}
