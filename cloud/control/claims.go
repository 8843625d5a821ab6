package control

import (
	"context"

	"github.com/weirhq/weir/cloud/gateway"
	"github.com/weirhq/weir/tenants/store"
)

var _ gateway.Claims = (*Control)(nil)

// Claim holds an Idempotency-Key for one request among all gateways.
func (c *Control) Claim(ctx context.Context, n gateway.Claim) (gateway.Claimed, error) {
	got, err := c.store.ClaimIdempotencyKey(ctx, store.Claim(n))
	return gateway.Claimed{Mine: got.Mine, SameBody: got.SameBody}, err
}

// DropClaim frees the claim of a request that has failed.
func (c *Control) DropClaim(ctx context.Context, n gateway.Claim) error {
	return c.store.DropClaim(ctx, store.Claim(n))
}
