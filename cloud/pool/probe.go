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
)

// maxHealth bounds a health answer, in bytes.
const maxHealth = 64 << 10

// health is what GET /health of a Weir worker says. Other engines answer 200
// with nothing or with members of their own.
type health struct {
	Status      string          `json:"status"`
	Epoch       string          `json:"epoch"`
	Role        route.Role      `json:"role"`
	Model       string          `json:"model"`
	Fingerprint json.RawMessage `json:"fingerprint"`
	Context     int             `json:"context"`
	MaxSeqs     int             `json:"max_seqs"`
}

// probeError is a failed probe. final takes the instance out at once.
type probeError struct {
	problem string
	final   bool
}

func (e *probeError) Error() string { return e.problem }

func (p *Pool) watch(ctx context.Context, in *instance) {
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
	return readHealth(resp.StatusCode, body, in.Served)
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
	case len(h.Epoch) > 128 || h.Context < 0 || h.MaxSeqs < 0:
		return h, &probeError{"reports impossible values", true}
	}
	return h, nil
}

// note takes a probe's result into the state.
func (p *Pool) note(in *instance, h health, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	was, wasProblem := in.view.Ready, in.problem
	if err != nil {
		p.noteFailure(in, err)
	} else {
		p.noteHealthy(in, h)
	}
	switch {
	case in.view.Ready && !was:
		p.opts.Log.Info("instance ready", "instance", in.Name, "role", in.view.Role, "model", in.Model, "epoch", in.view.Epoch)
	case !in.view.Ready && (was || in.problem != wasProblem):
		p.opts.Log.Warn("instance not ready", "instance", in.Name, "problem", in.problem)
	}
}

func (p *Pool) noteFailure(in *instance, err error) {
	in.misses++
	var pe *probeError
	if errors.As(err, &pe) && pe.final || in.misses >= missesAllowed || !in.view.Ready {
		in.view.Ready = false
		in.problem = err.Error()
	}
}

func (p *Pool) noteHealthy(in *instance, h health) {
	if h.Epoch != in.view.Epoch {
		// A new process: nothing that was under way survives it.
		in.view.Epoch = h.Epoch
		in.view.InFlight = route.InFlight{}
	}
	in.view.Ready, in.problem, in.misses = true, "", 0
	in.view.SeenAt = time.Since(p.start)
	in.view.Role = in.Role
	if h.Role != "" {
		in.view.Role = h.Role
	}
	in.view.Context, in.maxSeqs = h.Context, h.MaxSeqs
	in.view.KVFormat = kvFormat(h.Fingerprint)
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
