package state

import (
	"encoding/binary"
	"testing"

	"github.com/weirhq/weir/internal/prefix"
	"pgregory.net/rapid"
)

func key(i int) prefix.Key {
	var k prefix.Key
	binary.LittleEndian.PutUint32(k[:], uint32(i))
	return k
}

// follow applies a message to what a gateway knows.
func follow(known map[string]bool, m Message) {
	if m.Full {
		clear(known)
	}
	for _, k := range m.KeysAdded {
		known[k] = true
	}
	for _, k := range m.KeysEvicted {
		delete(known, k)
	}
}

// TestReadersFollow: readers of any pace come to know exactly the keys held.
func TestReadersFollow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := NewBoard()
		held := map[int]int{}
		readers := []*Reader{b.NewReader(), b.NewReader()}
		known := []map[string]bool{{}, {}}
		for range rapid.IntRange(0, 60).Draw(t, "changes") {
			i := rapid.IntRange(0, 6).Draw(t, "key")
			if held[i] > 0 && rapid.Bool().Draw(t, "drop") {
				held[i]--
				b.Drop([]prefix.Key{key(i)})
			} else {
				held[i]++
				b.Hold([]prefix.Key{key(i)})
			}
			if r := rapid.IntRange(0, 4).Draw(t, "reads"); r < 2 {
				follow(known[r], readers[r].Next())
			}
		}
		for r, rd := range readers {
			follow(known[r], rd.Next())
			for i, n := range held {
				if known[r][key(i).String()] != (n > 0) {
					t.Fatalf("reader %d: key %d held %d times, known %v", r, i, n, known[r])
				}
			}
		}
	})
}

// TestSlowReader: who has missed too much starts anew.
func TestSlowReader(t *testing.T) {
	b := NewBoard()
	slow, quick := b.NewReader(), b.NewReader()
	slow.Next()
	quick.Next()
	for i := range 3 * maxLog {
		b.Hold([]prefix.Key{key(i)})
		if i%1000 == 999 {
			if m := quick.Next(); m.Full || len(m.KeysAdded) != 1000 {
				t.Fatalf("full %v, %d keys", m.Full, len(m.KeysAdded))
			}
		}
	}
	m := slow.Next()
	if !m.Full || len(m.KeysAdded) != 3*maxLog || m.Seq != 2 {
		t.Errorf("full %v, %d keys, message %d", m.Full, len(m.KeysAdded), m.Seq)
	}
	if m := slow.Next(); m.Full || len(m.KeysAdded) != 0 {
		t.Errorf("again full %v, %d keys", m.Full, len(m.KeysAdded))
	}
}

func TestRequests(t *testing.T) {
	b := NewBoard()
	r := b.NewReader()
	if !r.Changed() {
		t.Error("no first message")
	}
	r.Next()
	first, second := b.Begin("a", 7), b.Begin("b", 8)
	second.Set(Decode, 3)
	if !r.Changed() {
		t.Error("no news of requests")
	}
	m := r.Next()
	if len(m.Requests) != 2 || m.Requests[0] != (Request{"a", Waiting, 7, 0}) || m.Requests[1] != (Request{"b", Decode, 8, 3}) {
		t.Errorf("%+v", m.Requests)
	}
	first.End()
	b.SetLoad(Load{Running: 1})
	if m := r.Next(); len(m.Requests) != 1 || m.Running != 1 || b.InFlight() != 1 {
		t.Errorf("%+v", m)
	}
	b.SetLoad(Load{Running: 1})
	if r.Changed() {
		t.Error("the same load is news")
	}
	if b.Touch(); !r.Changed() {
		t.Error("a touch is no news")
	}
}
