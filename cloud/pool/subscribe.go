package pool

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/engine/worker/state"
)

// maxMessage bounds one message of state, in bytes: the first holds all prefix
// keys, 35 bytes each.
const maxMessage = 16 << 20

// Waits between two tries at an instance's stream of state.
const (
	firstWait = 200 * time.Millisecond
	mostWait  = 5 * time.Second
	// noStreamWait is for an engine that has no such stream.
	noStreamWait = 30 * time.Second
)

// errNoStream says that the instance has no stream of state.
var errNoStream = errors.New("the instance has no stream of state")

// follow reads the instance's stream of state, again and again, and at once when
// a probe finds a process that has come up.
func (p *Pool) follow(ctx context.Context, in *instance) {
	wait := firstWait
	for {
		began := time.Now()
		err := p.subscribe(ctx, in)
		p.lost(in)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errNoStream):
			wait = noStreamWait
		case time.Since(began) > mostWait || wait == noStreamWait:
			wait = firstWait
		default:
			wait = min(2*wait, mostWait)
		}
		p.opts.Log.Debug("state stream ended", "instance", in.Name, "again_in", wait, "error", err)
		select {
		case <-ctx.Done():
			return
		case <-in.came:
			wait = firstWait
		case <-time.After(wait):
		}
	}
}

// subscribe reads one stream until it ends, breaks a rule or is silent for too
// long.
func (p *Pool) subscribe(ctx context.Context, in *instance) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(p.opts.Silence, func() { cancel(errors.New("silent for too long")) })
	defer silence.Stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, in.URL+"/instance/v1/state", nil)
	if err != nil {
		return fmt.Errorf("state: %w", err)
	}
	resp, err := p.opts.Client.Do(req)
	if err != nil {
		return fmt.Errorf("state: %w", err)
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return errNoStream
	default:
		return fmt.Errorf("state: answered %d", resp.StatusCode)
	}
	lines := &messageReader{r: bufio.NewReaderSize(resp.Body, 16<<10)}
	for {
		m, err := lines.next()
		if err != nil {
			return errors.Join(err, context.Cause(ctx))
		}
		silence.Reset(p.opts.Silence)
		if err := p.hear(in, m); err != nil {
			return err
		}
	}
}

// messageReader reads messages of state, one a line.
type messageReader struct {
	r   *bufio.Reader
	buf []byte
}

func (l *messageReader) next() (*state.Message, error) {
	l.buf = l.buf[:0]
	for {
		part, err := l.r.ReadSlice('\n')
		l.buf = append(l.buf, part...)
		switch {
		case len(l.buf) > maxMessage:
			return nil, fmt.Errorf("a state message is longer than %d bytes", maxMessage)
		case err == nil:
			m := new(state.Message)
			if err := json.Unmarshal(l.buf, m); err != nil {
				return nil, fmt.Errorf("a state message cannot be read: %w", err)
			}
			return m, nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF):
			return nil, io.ErrUnexpectedEOF
		default:
			return nil, fmt.Errorf("state: %w", err)
		}
	}
}

// hear takes a message into the state.
func (p *Pool) hear(in *instance, m *state.Message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	if m.Model != "" && m.Model != in.Served {
		return fmt.Errorf("state of model %.80q, configured is %q", m.Model, in.Served)
	}
	mispriced := priced(m)
	if err := plausible(m); err != nil {
		return err
	}
	in.reborn(m.Epoch)
	if err := in.known.apply(m, &in.index, now); err != nil {
		return err
	}
	if mispriced != nil && in.known.mispriced() {
		p.opts.Log.Warn("an instance's cost model is left out: measure it anew with 'weir worker bench'", "instance", in.Name, "epoch", in.epoch, "error", mispriced)
	}
	in.seen, in.role = now, route.Role(m.Role)
	if m.Context > 0 {
		in.context, in.maxSeqs = m.Context, m.MaxSeqs
	}
	if m.Fingerprint != nil {
		in.bears(*m.Fingerprint)
	}
	if m.Health != "" && m.Health != healthOK {
		in.vitals.ill("reports "+m.Health, true)
	}
	reported := make(map[string]bool, len(m.Requests))
	for _, r := range m.Requests {
		reported[r.Operation] = true
	}
	in.ledger.reconcile(reported, now)
	return nil
}

// Words of an instance about its health.
const (
	healthOK       = "ok"
	healthDraining = "draining"
)

// lost forgets what only a running stream keeps true, and asks how the
// instance is.
func (p *Pool) lost(in *instance) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if in.known.seq == 0 {
		return
	}
	in.known.seq, in.known.load.At = 0, 0
	signal(in.kick)
}
