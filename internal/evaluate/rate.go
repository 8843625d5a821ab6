package evaluate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/weirhq/weir/internal/client"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/tenants"
)

// ratePolicy is the name of the policy that is in force while a rate is
// evaluated; answers carry it in X-Weir-Policy.
const ratePolicy = "weir-eval-rate"

// policyRow is a tenant's policy as the admin API shows and takes it.
type policyRow struct {
	TenantID  string          `json:"tenant_id"`
	Class     string          `json:"class"`
	Mode      string          `json:"mode"`
	Threshold *float64        `json:"threshold"`
	Spec      json.RawMessage `json:"spec"`
}

// holdRate makes the system of a ready file hold a share of escalations, and
// returns what puts the old policy back. It is in force on an edge after the
// edge's next poll: see awaitPolicy.
func holdRate(ctx context.Context, ready client.Ready, rate float64) (restore func(context.Context) error, err error) {
	a := client.Admin{URL: ready.CloudURL, Token: ready.AdminToken, HTTP: &http.Client{}}
	key, err := tenants.ParseKey(ready.AppKey)
	if err != nil {
		return nil, fmt.Errorf("app_key of the ready file: %w", err)
	}
	var owner struct {
		TenantID string `json:"tenant_id"`
	}
	if err := a.Call(ctx, http.MethodGet, "keys/"+key.ID, nil, &owner); err != nil {
		return nil, err
	}
	var before struct{ Data []policyRow }
	if err := a.Call(ctx, http.MethodGet, "policies?tenant_id="+owner.TenantID, nil, &before); err != nil {
		return nil, err
	}
	spec := fmt.Appendf(nil, `{"name":%q,"rate":%g}`, ratePolicy, rate)
	if err := a.Call(ctx, http.MethodPut, "policies", policyRow{TenantID: owner.TenantID, Spec: spec}, nil); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		for _, p := range before.Data {
			if p.Class == "" {
				return a.Call(ctx, http.MethodPut, "policies", p, nil)
			}
		}
		return a.Call(ctx, http.MethodDelete, "policies?tenant_id="+owner.TenantID, nil, nil)
	}, nil
}

// errNotInForce says that an edge has not got the policy in time.
var errNotInForce = errors.New("the edge has not taken the rate's policy into force: see its log")

// awaitPolicy asks the edge for small answers until the rate's policy judges
// them, at most a minute.
func awaitPolicy(ctx context.Context, ready client.Ready) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errNotInForce)
	defer cancel()
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		if policyInForce(ctx, ready) == ratePolicy {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// policyInForce is the policy that judges an answer now, "" when there is none.
func policyInForce(ctx context.Context, ready client.Ready) string {
	body := strings.NewReader(`{"model":"auto","max_tokens":1,"messages":[{"role":"user","content":"1+1="}]}`)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(ready.EdgeURL, "/")+"/v1/chat/completions", body)
	if err != nil {
		return ""
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+ready.AppKey)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return ""
	}
	_ = resp.Body.Close() // only the header is of interest
	return resp.Header.Get(contract.HeaderPolicy)
}

// runAtRate is Run while the system holds a share of escalations. The tenant's
// policy is put back at the end, also when ctx has ended.
func runAtRate(ctx context.Context, ready client.Ready, rate float64, n, concurrency int, progress func(done, of int)) (r *Report, err error) {
	restore, err := holdRate(ctx, ready, rate)
	if err != nil {
		return nil, fmt.Errorf("--rate: %w", err)
	}
	defer func() {
		err = errors.Join(err, restore(context.WithoutCancel(ctx)))
	}()
	if err := awaitPolicy(ctx, ready); err != nil {
		return nil, fmt.Errorf("--rate: %w", err)
	}
	if r, err = Run(ctx, ready, n, concurrency, progress); err == nil {
		r.TargetRate = &rate
	}
	return r, err
}
