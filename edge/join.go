package edge

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weirhq/weir/edge/identity"
	"github.com/weirhq/weir/internal/enroll"
	"github.com/weirhq/weir/tenants"
)

// join returns the device's identity, joining the cloud first if it has none.
// A cloud that does not answer yet is tried again; a refusal is final.
func (a *agent) join(ctx context.Context) (*identity.Identity, error) {
	id, err := identity.Load(a.cfg.identityDir())
	switch {
	case err == nil:
		if moved := a.cfg.clouds(); len(moved) > 0 {
			id.CloudURL = moved[0] // the cloud may have moved; its CA is still checked
		}
		if left := time.Until(id.NotAfter); left < 14*24*time.Hour {
			a.log.Warn("the device's certificate ends soon: join again with a new token", "not_after", id.NotAfter)
		}
		return id, nil
	case !errors.Is(err, identity.ErrNone):
		return nil, err
	}
	token, err := joinToken(a.cfg)
	if err != nil {
		return nil, err
	}
	wait, clouds := 250*time.Millisecond, a.cfg.clouds()
	for {
		id, err := joinAny(ctx, a.cfg.identityDir(), clouds, token)
		if err == nil {
			a.log.Info("joined", "device", id.DeviceID, "tenant", id.TenantID, "cloud", id.CloudURL)
			return id, nil
		}
		if ctx.Err() != nil || !enroll.Temporary(err) {
			return nil, err
		}
		a.log.Warn("joining failed, will try again", "err", err, "in", wait)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, err
		}
		wait = min(2*wait, 10*time.Second)
	}
}

// joinAny asks the gateways of one cloud in turn, until one answers.
func joinAny(ctx context.Context, dir string, clouds []string, token tenants.JoinToken) (*identity.Identity, error) {
	var failed error
	for _, url := range clouds {
		id, err := identity.Join(ctx, dir, url, token)
		if err == nil || !enroll.Temporary(err) {
			return id, err
		}
		if failed != nil {
			err = fmt.Errorf("%w; %w", failed, err)
		}
		failed = err
	}
	return nil, failed
}

// joinToken reads the token from the environment or its file. Its text is in
// no error.
func joinToken(cfg Config) (tenants.JoinToken, error) {
	if len(cfg.clouds()) == 0 {
		return tenants.JoinToken{}, errors.New("this device has not joined: set cloud_url or cloud_urls, and join_token_file or WEIR_EDGE_JOIN_TOKEN")
	}
	if cfg.JoinToken == "" && cfg.JoinTokenFile == "" {
		return tenants.JoinToken{}, errors.New("this device has not joined: set join_token_file or WEIR_EDGE_JOIN_TOKEN (weir join-tokens or the admin API mint one)")
	}
	return enroll.ReadToken(cfg.JoinToken, cfg.JoinTokenFile)
}
