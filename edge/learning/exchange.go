package learning

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/learn"
	"github.com/weirhq/weir/edge/uplink"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
)

// PathCascade is where a device reports what it has learned and gets what the
// tenant's other devices have.
const PathCascade = "/edge/v1/cascade"

// Cloud sends one request to the cloud.
type Cloud interface {
	Do(context.Context, uplink.Request) (*uplink.Response, error)
}

// Peer is the other side of an exchange.
type Peer struct {
	Cloud  Cloud
	Tenant string
	Key    ed25519.PublicKey // that signs for the cloud
}

const (
	exchangeTimeout = 20 * time.Second
	maxPrior        = 64 << 10 // bytes
)

// errPrior says that a prior is not for this node's model.
var errPrior = errors.New("the prior is for something else")

// Exchange shares what was learned, once at the start and then each every, until
// ctx ends. A node without the cloud goes on with what it has.
func (l *Learner) Exchange(ctx context.Context, p Peer, every time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		err := l.share(ctx, p)
		if err != nil && ctx.Err() == nil && !errors.Is(err, uplink.ErrDown) {
			l.opt.Logger.Warn("what was learned was not shared", "err", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (l *Learner) share(ctx context.Context, p Peer) error {
	l.mu.Lock()
	report := l.table.Report()
	l.mu.Unlock()
	if report.Fingerprint == "" {
		return nil // no model has run yet
	}
	prior, err := post(ctx, p, report)
	if err != nil {
		return err
	}
	if prior.TenantID != p.Tenant {
		return fmt.Errorf("%w: tenant %.64q", errPrior, prior.TenantID)
	}
	return l.adopt(prior)
}

// adopt starts cells from what other devices have learned.
func (l *Learner) adopt(p *tenants.Prior) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	features := make([]string, len(l.table.Features))
	for i, f := range l.table.Features {
		features[i] = string(f)
	}
	if p.Fingerprint != l.table.Fingerprint || !slices.Equal(p.Features, features) || len(p.Values) != len(features)+1 {
		return fmt.Errorf("%w: model %.64q, %d values", errPrior, p.Fingerprint, len(p.Values))
	}
	if p.Devices == 0 || slices.Equal(p.Values, values(l.table)) {
		return nil
	}
	l.table.SetPrior(cascade.Logistic{Bias: p.Values[0], W: p.Values[1:]})
	l.publishAll()
	l.opt.Logger.Info("cascade prior adopted", "devices", p.Devices)
	return nil
}

func values(t *learn.Table) []float64 {
	prior := t.Prior()
	return prior.Values()
}

func post(ctx context.Context, p Peer, report learn.Report) (*tenants.Prior, error) {
	body, err := json.Marshal(report)
	if err != nil {
		return nil, fmt.Errorf("share what was learned: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, exchangeTimeout)
	defer cancel()
	resp, err := p.Cloud.Do(ctx, uplink.Request{Method: http.MethodPost, Path: PathCascade, Body: body, Header: http.Header{"Content-Type": {"application/json"}}})
	if err != nil {
		return nil, fmt.Errorf("share what was learned: %w", err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxPrior))
	if err != nil {
		return nil, fmt.Errorf("share what was learned: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("share what was learned: the cloud answered %d: %s", resp.StatusCode, openai.ParseError(resp.StatusCode, answer).Message)
	}
	return tenants.VerifyPrior(answer, map[string]ed25519.PublicKey{tenants.SignerID(p.Key): p.Key})
}
