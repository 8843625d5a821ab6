package handoff

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/weirhq/weir/engine"
)

// stageLife is how long KV that was sent ahead waits for its hand-off.
const stageLife = 30 * time.Second

// stage is KV that a peer has sent ahead of a hand-off: the request still runs
// there. It holds bytes of Endpoint.pulled.
type stage struct {
	operation string
	prompt    []engine.Token // whose KV it is
	kv        [][]byte
	bytes     int64
	timer     *time.Timer
}

// tokens is how many tokens' KV was sent ahead; of nothing 0.
func (st *stage) tokens() int {
	if st == nil {
		return 0
	}
	return len(st.prompt)
}

// keep leaves the release of its bytes to the caller.
func (st *stage) keep() int64 {
	n := st.bytes
	st.bytes = 0
	return n
}

// Stage sends KV ahead to the worker at dst, which keeps it until it reads the
// hand-off dst.Handle. Parts follow one another; item's is the next one.
func (e *Endpoint) Stage(ctx context.Context, dst Source, item *Item) error {
	s, err := e.open(ctx, dst)
	if err != nil {
		return err
	}
	defer s.CancelRead(0)
	stop := context.AfterFunc(ctx, func() { s.CancelRead(0); s.CancelWrite(0) })
	defer stop()
	_ = s.SetDeadline(time.Now().Add(sendTimeout))
	err = writeRequest(s, request{Handle: dst.Handle.String(), Operation: dst.Operation, Stage: true})
	if err == nil {
		err = deliver(s, item)
	}
	if err != nil {
		s.CancelWrite(1)
		return fmt.Errorf("send KV ahead to %s: %w", dst.Addr, err)
	}
	e.o.Metrics.MigrationBytes.Add(float64(item.size()))
	e.o.Metrics.ExportBytes.Add(float64(item.size()))
	_ = s.Close() // the receipt has said it all
	return nil
}

// takeStage keeps what a peer sends ahead, and says so.
func (e *Endpoint) takeStage(s *quic.Stream, h Handle, operation string) error {
	header, err := readHeader(s)
	if err != nil {
		return fmt.Errorf("KV sent ahead: %w", err)
	}
	if err := header.checkStage(e.o.Info); err != nil {
		return err
	}
	if !e.pulled.TryAcquire(header.payload()) {
		return fmt.Errorf("no room for %d bytes sent ahead", header.payload())
	}
	in := &progress{s: s}
	got, err := readPayload(in, header)
	if err == nil {
		err = e.keepStage(h, operation, header, got.Tokens, got.KV)
	}
	if err != nil {
		e.pulled.Release(header.payload())
		return fmt.Errorf("KV sent ahead: %w", err)
	}
	e.o.Metrics.PullBytes.Add(float64(in.n))
	if _, err := s.Write([]byte{receipt}); err != nil {
		return err
	}
	return s.Close()
}

// checkStage decides whether h can be KV sent ahead for this model.
func (h Header) checkStage(info engine.Info) error {
	if h.Vocab != 0 || h.Tokens < 1 || h.Tokens > info.Context || h.From < 0 || h.From >= h.Tokens {
		return fmt.Errorf("%w: KV of tokens %d to %d sent ahead", errVerify, h.From, h.Tokens)
	}
	return h.checkKV(info)
}

// keepStage adds a part to what has come before. A first part replaces it.
func (e *Endpoint) keepStage(h Handle, operation string, header Header, tokens []engine.Token, kv [][]byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	st := e.stages[h]
	if header.From == 0 {
		if st != nil {
			e.dropStage(h)
		}
		st = &stage{operation: operation, timer: time.AfterFunc(stageLife, func() {
			e.mu.Lock()
			defer e.mu.Unlock()
			if e.stages[h] == st {
				e.dropStage(h)
			}
		})}
		e.stages[h] = st
	}
	if st == nil || st.operation != operation || len(st.prompt) != header.From || !slices.Equal(st.prompt, tokens[:header.From]) ||
		len(st.kv)+len(kv) > maxParts {
		return fmt.Errorf("%w: a part that begins at position %d", errVerify, header.From)
	}
	st.prompt, st.kv = tokens, append(st.kv, kv...)
	st.bytes += header.payload()
	st.timer.Reset(stageLife)
	return nil
}

// dropStage is for who holds e.mu.
func (e *Endpoint) dropStage(h Handle) {
	st := e.stages[h]
	delete(e.stages, h)
	st.timer.Stop()
	e.pulled.Release(st.bytes)
}

// staged takes what was sent ahead of a hand-off of prompt out of e's hands, nil
// where nothing was.
func (e *Endpoint) staged(src Source, prompt []engine.Token) *stage {
	e.mu.Lock()
	defer e.mu.Unlock()
	st := e.stages[src.Handle]
	if st == nil || st.operation != src.Operation || len(st.prompt) > len(prompt) || !slices.Equal(st.prompt, prompt[:len(st.prompt)]) {
		return nil
	}
	delete(e.stages, src.Handle)
	st.timer.Stop()
	return st
}

// release gives back the room of what was not kept.
func (e *Endpoint) release(st *stage) {
	if st != nil {
		e.pulled.Release(st.bytes)
	}
}
