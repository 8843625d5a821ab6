package pool

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"syscall"
	"time"

	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/engine"
)

// Bounds of a health answer and of an epoch, in bytes.
const (
	maxHealth = 64 << 10
	maxEpoch  = 128
)

// health is what GET /health of a Weir worker says. Other engines answer 200
// with nothing or with members of their own.
type health struct {
	Status      string          `json:"status"`
	Name        string          `json:"name"`
	Epoch       string          `json:"epoch"`
	Role        route.Role      `json:"role"`
	Model       string          `json:"model"`
	Fingerprint json.RawMessage `json:"fingerprint"`
	Context     int             `json:"context"`
	MaxSeqs     int             `json:"max_seqs"`
	Handoff     *bool           `json:"handoff"` // nil: it does not say
	Failing     string          `json:"failing"`
	KV          *destination    `json:"kv"` // where it gives KV to others
}

// probeError is a failed probe. final takes the instance out at once.
type probeError struct {
	problem string
	final   bool
}

func (e *probeError) Error() string { return e.problem }

func (p *Pool) probeAll(ctx context.Context, in *instance) {
	tick := time.NewTicker(p.opts.Interval)
	defer tick.Stop()
	for {
		h, err := p.probe(ctx, in)
		if ctx.Err() != nil {
			return
		}
		p.note(in, h, err)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-in.kick:
		}
	}
}

// probe asks the instance for its health. The error is a *probeError.
func (p *Pool) probe(ctx context.Context, in *instance) (health, error) {
	ctx, cancel := context.WithTimeout(ctx, p.opts.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, in.URL+"/health", nil)
	if err != nil {
		return health{}, &probeError{fmt.Sprintf("url: %v", err), true}
	}
	resp, err := p.opts.Client.Do(req)
	if err != nil {
		return health{}, &probeError{fmt.Sprintf("probe: %v", err), errors.Is(err, syscall.ECONNREFUSED)}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxHealth+1))
	if err != nil {
		return health{}, &probeError{fmt.Sprintf("probe: %v", err), false}
	}
	h, err := readHealth(resp.StatusCode, body, in.Served)
	if err == nil && in.joined != nil && h.Name != in.Name {
		// Its address has passed to another worker.
		return h, &probeError{fmt.Sprintf("instance %.80q answers in its place", h.Name), true}
	}
	return h, err
}

// readHealth reads a health answer of any engine.
func readHealth(status int, body []byte, served string) (health, error) {
	var h health
	parsed := len(body) <= maxHealth && json.Unmarshal(body, &h) == nil
	if !parsed {
		h = health{}
	}
	switch {
	case status != http.StatusOK && h.Status != "":
		return h, &probeError{fmt.Sprintf("reports %.40q", h.Status), true}
	case status != http.StatusOK:
		return h, &probeError{fmt.Sprintf("health answered %d", status), true}
	case h.Model != "" && h.Model != served:
		return h, &probeError{fmt.Sprintf("serves model %.80q, configured is %q", h.Model, served), true}
	case h.Role != "" && !h.Role.Valid():
		return h, &probeError{fmt.Sprintf("reports unknown role %.40q", h.Role), true}
	case len(h.Epoch) > maxEpoch || h.Context < 0 || h.MaxSeqs < 0:
		return h, &probeError{"reports impossible values", true}
	}
	return h, nil
}

// note takes a probe's result into the state.
func (p *Pool) note(in *instance, h health, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	was, wasProblem := in.vitals.up, in.vitals.problem
	if err != nil {
		var pe *probeError
		in.vitals.ill(err.Error(), errors.As(err, &pe) && pe.final)
	} else {
		p.noteHealthy(in, h)
	}
	switch up := in.vitals.up; {
	case up && !was:
		p.opts.Log.Info("instance ready", "instance", in.Name, "role", in.role, "model", in.Model, "epoch", in.epoch)
	case !up && (was || in.vitals.problem != wasProblem):
		p.opts.Log.Warn("instance not ready", "instance", in.Name, "problem", in.vitals.problem)
	}
}

func (p *Pool) noteHealthy(in *instance, h health) {
	if !in.vitals.up || h.Epoch != in.epoch {
		signal(in.came)
	}
	in.reborn(h.Epoch)
	in.seen = p.now()
	in.vitals.healthy(in.seen)
	in.role = in.Role
	if h.Role != "" {
		in.role = h.Role
	}
	in.context, in.maxSeqs = h.Context, h.MaxSeqs
	in.kv = kvFormat(h.Fingerprint)
	in.bears(fingerprint(h.Fingerprint))
	in.apart = h.Handoff != nil && !*h.Handoff
	if h.KV.valid() {
		in.takesKVAt(h.KV.Host, h.KV.Port)
	}
	if in.known.seq == 0 { // no stream has newer words
		in.known.draining, in.known.failing = false, clip(h.Failing)
	}
}

// fingerprint is a Weir worker's; zero for others.
func fingerprint(raw json.RawMessage) (f engine.Fingerprint) {
	if len(raw) == 0 || json.Unmarshal(raw, &f) != nil {
		return engine.Fingerprint{}
	}
	return f
}

// kvFormat names a fingerprint: equal fingerprints, equal names.
func kvFormat(raw json.RawMessage) string {
	var b bytes.Buffer
	if len(raw) == 0 || json.Compact(&b, raw) != nil || b.String() == "null" {
		return ""
	}
	sum := sha256.Sum256(b.Bytes())
	return hex.EncodeToString(sum[:8])
}
