package store

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
)

// Claim is a request's hold on its Idempotency-Key.
type Claim struct {
	TenantID, KeyID string
	Key             string   // the header's value
	Body            [32]byte // SHA-256 of the request's body
	Node            string   // who claims it, and keeps the answer
	Life            time.Duration
}

// Claimed is the outcome of a claim.
type Claimed struct {
	Mine     bool   // this call made the claim
	Node     string // who holds it
	SameBody bool   // the holder's request had the same body
}

// ClaimIdempotencyKey claims a key for one request, or tells who holds it. An
// expired claim is free again.
func (s *Store) ClaimIdempotencyKey(ctx context.Context, c Claim) (Claimed, error) {
	// Two statements: a row that vanishes between them is tried once more.
	for range 2 {
		tag, err := s.pool.Exec(ctx, `insert into weir.idempotency_claims as c (tenant_id, key_id, key, body_sha256, node, expires_at)
			values ($1, $2, $3, $4, $5, now() + $6::interval)
			on conflict (tenant_id, key_id, key) do update
			set body_sha256 = excluded.body_sha256, node = excluded.node, claimed_at = now(), expires_at = excluded.expires_at
			where c.expires_at <= now()`, c.TenantID, c.KeyID, c.Key, c.Body[:], c.Node, c.Life)
		if err != nil {
			return Claimed{}, wrap("claim idempotency key", err)
		}
		if tag.RowsAffected() == 1 {
			return Claimed{Mine: true, Node: c.Node, SameBody: true}, nil
		}
		var held Claimed
		err = s.pool.QueryRow(ctx, `select node, body_sha256 = $4 from weir.idempotency_claims
			where tenant_id = $1 and key_id = $2 and key = $3`, c.TenantID, c.KeyID, c.Key, c.Body[:]).Scan(&held.Node, &held.SameBody)
		if !errors.Is(err, pgx.ErrNoRows) {
			return held, wrap("claim idempotency key", err)
		}
	}
	return Claimed{}, wrap("claim idempotency key", errors.New("the claim was taken and freed at once: try again"))
}

// DropClaim frees a claim whose request has failed before any model ran.
func (s *Store) DropClaim(ctx context.Context, c Claim) error {
	_, err := s.pool.Exec(ctx, `delete from weir.idempotency_claims
		where tenant_id = $1 and key_id = $2 and key = $3 and node = $4 and body_sha256 = $5`, c.TenantID, c.KeyID, c.Key, c.Node, c.Body[:])
	return wrap("drop idempotency claim", err)
}

// SweepClaims removes expired claims, a bounded number at a time.
func (s *Store) SweepClaims(ctx context.Context) error {
	_, err := s.pool.Exec(ctx, `delete from weir.idempotency_claims where ctid = any (array(
		select ctid from weir.idempotency_claims where expires_at < now() limit 10000))`)
	return wrap("sweep idempotency claims", err)
}
