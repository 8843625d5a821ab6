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
	return NewItem(loop.Handoff{Tokens: make([]engine.Token, 3), Logits: make([]float32, 5), KV: make([]byte, n-32)}, engine.Fingerprint{Weights: "w"})
}

func TestStoreGivesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStore(1000, 30*time.Second, nil)
		defer s.Close()
		h, until, err := s.Put("op", item(100))
		if err != nil || time.Until(until) != 30*time.Second || s.Bytes() != 100 {
			t.Fatalf("put: %v, until %v, %d bytes", err, until, s.Bytes())
		}
		if _, _, err := s.Take(h, "other"); !errors.Is(err, ErrGone) {
			t.Errorf("another operation: %v", err)
		}
		if _, _, err := s.Take(Handle{}, "op"); !errors.Is(err, ErrGone) {
			t.Errorf("another handle: %v", err)
		}
		it, done, err := s.Take(h, "op")
		if err != nil || len(it.KV) != 68 || s.Bytes() != 100 {
			t.Errorf("take: %v, %d bytes held while it is read", err, s.Bytes())
		}
		done()
		done()
		if s.Bytes() != 0 {
			t.Errorf("%d bytes after done", s.Bytes())
		}
		if _, _, err := s.Take(h, "op"); !errors.Is(err, ErrGone) {
			t.Errorf("second reader: %v", err)
		}
	})
}

func TestStoreExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		expired := 0
		s := NewStore(250, 30*time.Second, func() { expired++ })
		first, _, _ := s.Put("a", item(100))
		time.Sleep(10 * time.Second)
		second, _, _ := s.Put("b", item(100))
		if _, _, err := s.Put("c", item(100)); !errors.Is(err, ErrFull) {
			t.Errorf("over the limit: %v", err)
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if _, _, err := s.Take(first, "a"); !errors.Is(err, ErrGone) || expired != 1 || s.Bytes() != 100 {
			t.Errorf("after 30 s: %v, %d expired, %d bytes", err, expired, s.Bytes())
		}
		_, done, err := s.Take(second, "b")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if expired != 1 || s.Bytes() != 100 {
			t.Errorf("one that is being read expired: %d, %d bytes", expired, s.Bytes())
		}
		done()
		_, _, _ = s.Put("d", item(100))
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
		held, reading := map[Handle]int64{}, []func(){}
		want := int64(0)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 2).Draw(t, "do") {
			case 0:
				it := item(rapid.IntRange(32, 400).Draw(t, "size"))
				h, _, err := s.Put("op", it)
				if (err == nil) != (want+it.size() <= 1000) {
					t.Fatalf("put of %d at %d: %v", it.size(), want, err)
				}
				if err == nil {
					held[h] = it.size()
					want += it.size()
				}
			case 1:
				for h, size := range held {
					_, done, err := s.Take(h, "op")
					if err != nil {
						t.Fatal(err)
					}
					delete(held, h)
					reading = append(reading, func() { done(); want -= size })
					break
				}
			case 2:
				if n := len(reading); n > 0 {
					reading[n-1]()
					reading = reading[:n-1]
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
