package handoff

import (
	"bytes"
	"context"
	"slices"
	"testing"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/worker/loop"
)

// moving is a request that has been copied up to some tokens.
type moving struct {
	e      *end
	src    Source
	tokens []engine.Token
	starts []int
	kv     [][]byte
}

func newMoving(e *end) *moving {
	return &moving{e: e, src: Source{Addr: e.addr, Epoch: "e", Handle: NewHandle(), Operation: "op"}}
}

// grow makes n more tokens and returns the part of KV that they are.
func (m *moving) grow(n int) loop.Handoff {
	from := len(m.tokens)
	for i := range n {
		m.tokens = append(m.tokens, engine.Token(from+i))
	}
	part := bytes.Repeat([]byte{byte(from)}, 8*n)
	m.starts, m.kv = append(m.starts, from), append(m.kv, part)
	return loop.Handoff{Tokens: slices.Clone(m.tokens), KV: [][]byte{part}, From: from}
}

// ahead sends n more tokens to a destination.
func (m *moving) ahead(to *end, n int) error {
	dst := m.src
	dst.Addr = to.addr
	return m.e.Stage(context.Background(), dst, NewItem(m.grow(n), testInfo.Fingerprint))
}

// stop offers the request, n tokens later.
func (m *moving) stop(t *testing.T, n int) {
	t.Helper()
	m.grow(n)
	it := NewStaged(loop.Handoff{Tokens: m.tokens, Logits: make([]float32, testInfo.Vocab), KV: m.kv}, testInfo.Fingerprint, m.starts)
	if _, err := m.e.store.Put(m.src.Handle, "op", it); err != nil {
		t.Fatal(err)
	}
	m.src.Extra = it.Offer(m.src.Handle, it.expiry(), "e", "h", 1, 16).Weir
}

func (m *moving) pull(t *testing.T, at *end) {
	t.Helper()
	h, err := at.Pull(context.Background(), m.src, m.tokens)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.EqualFunc(h.KV, m.kv, bytes.Equal) || h.From != 0 || !slices.Equal(h.Tokens, m.tokens) {
		t.Errorf("%d parts from %d", len(h.KV), h.From)
	}
	h.Done()
	if !at.pulled.TryAcquire(at.o.MaxPulled) {
		t.Error("room was not given back")
	}
	at.pulled.Release(at.o.MaxPulled)
}

// TestStages: who was sent the first parts reads the last one, who was not reads
// all.
func TestStages(t *testing.T) {
	info := testInfo
	info.Context = 4096
	_, e := ends(t, info, 3)
	for _, at := range e[1:] {
		m := newMoving(e[0])
		for _, n := range []int{1000, 30} {
			if err := m.ahead(e[1], n); err != nil {
				t.Fatal(err)
			}
		}
		m.stop(t, 3)
		m.pull(t, at)
		want, got := int64(4*(1033+5)+8*3), at.Transfers()[0].Bytes
		if at == e[2] {
			want += 8 * 1030
		}
		if got != want {
			t.Errorf("the last read has %d bytes, want %d", got, want)
		}
	}
}

// TestStageRefused: a part that does not follow, of another operation, that the
// model cannot have, or that there is no room for. What came before stays good.
func TestStageRefused(t *testing.T) {
	info := testInfo
	info.Context = 100
	_, e := ends(t, info, 2)
	m := newMoving(e[0])
	if err := m.ahead(e[1], 20); err != nil {
		t.Fatal(err)
	}
	stage := func(m *moving, h loop.Handoff) error {
		dst := m.src
		dst.Addr = e[1].addr
		return e[0].Stage(context.Background(), dst, NewItem(h, testInfo.Fingerprint))
	}
	other := *m
	other.src.Operation = "other"
	part := [][]byte{make([]byte, 8)}
	foreign := slices.Clone(m.tokens)
	foreign[3]++
	for name, refused := range map[string]error{
		"a gap":             stage(m, loop.Handoff{Tokens: make([]engine.Token, 30), KV: part, From: 25}),
		"other tokens":      stage(m, loop.Handoff{Tokens: append(foreign, 1), KV: part, From: 20}),
		"another operation": stage(&other, loop.Handoff{Tokens: append(slices.Clone(m.tokens), 1), KV: part, From: 20}),
		"beyond":            stage(m, loop.Handoff{Tokens: make([]engine.Token, 101), KV: part}),
		"nothing new":       stage(m, loop.Handoff{Tokens: m.tokens, KV: part, From: 20}),
		"huge":              stage(m, loop.Handoff{Tokens: m.tokens, KV: [][]byte{make([]byte, 2<<20)}}),
		"logits":            stage(m, loop.Handoff{Tokens: m.tokens, Logits: make([]float32, 5), KV: part}),
	} {
		if refused == nil {
			t.Errorf("%s: no error", name)
		}
	}
	m.stop(t, 2)
	m.pull(t, e[1])

	if !e[1].pulled.TryAcquire(e[1].o.MaxPulled - 100) {
		t.Fatal("the room is not free")
	}
	if err := newMoving(e[0]).ahead(e[1], 50); err == nil {
		t.Error("no room: no error")
	}
}

// TestStageWasLost: the destination reads all where it has lost what it was sent.
func TestStageWasLost(t *testing.T) {
	info := testInfo
	info.Context = 100
	_, e := ends(t, info, 2)
	m := newMoving(e[0])
	if err := m.ahead(e[1], 20); err != nil {
		t.Fatal(err)
	}
	e[1].mu.Lock()
	e[1].dropStage(m.src.Handle) // as its timer does
	e[1].mu.Unlock()
	m.stop(t, 2)
	m.pull(t, e[1])
}
