package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// tenantRole is the database's role for transactions of a tenant's admins. It
// sees the rows of the tenant in the setting weir.tenant and no others.
const tenantRole = "weir_tenant"

// Actor is who acts on the database. With a tenant it sees and changes that
// tenant's rows only, whatever the queries ask for.
type Actor struct {
	ID        string // of an admin token, or "system"
	Role      AdminRole
	TenantID  string // "": not bound
	RequestID string // of the call, for the audit log
}

// View runs f in a read-only transaction of the actor, as of one moment.
func (s *Store) View(ctx context.Context, who Actor, f func(*Store) error) error {
	o := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	return pgx.BeginTxFunc(ctx, s.pool, o, func(tx pgx.Tx) error {
		if err := become(ctx, tx, who); err != nil {
			return err
		}
		return f(&Store{pool: s.pool, db: tx})
	})
}

// become gives up the rights over other tenants for the transaction.
func become(ctx context.Context, tx pgx.Tx, who Actor) error {
	if who.TenantID == "" {
		return nil
	}
	_, err := tx.Exec(ctx, `select set_config('role', $1, true), set_config('weir.tenant', $2, true)`, tenantRole, who.TenantID)
	return wrap("act for tenant", err)
}

// Change is one entry of the audit log to be written.
type Change struct {
	TenantID string // "": of the platform
	Action   string // e.g. key.rotate
	Kind     string // of the object
	ObjectID string
	Before   any // nil: it was not there
	After    any // nil: it is gone
}

// Replay makes a change repeatable: with the same Key the change is made once
// and later calls get its answer. An empty Key repeats nothing.
type Replay struct {
	Key     string
	Request [32]byte // SHA-256 of all that the change depends on
	Life    time.Duration
	// Seal hides an answer from the database, Open undoes it.
	Seal func([]byte) ([]byte, error)
	Open func([]byte) ([]byte, error)
}

// Errors of repeated changes.
var (
	// ErrReplayDiffers says that the key was used for another request.
	ErrReplayDiffers = errors.New("the key was used for a different request")
	// ErrNoAudit says that a change told nothing for the audit log.
	ErrNoAudit = errors.New("a change without an entry for the audit log")
)

// Outcome is what a change answers.
type Outcome struct {
	Status int
	Body   []byte
	// Replayed says that it is the answer of an earlier call.
	Replayed bool
}

// Edit runs f in a transaction of the actor. The entry that f returns goes to
// the audit log, and its answer to what a retry will get, both in the same
// transaction: all of it happens or nothing. The error wraps ErrReplayDiffers
// when the replay's key belongs to another request.
func (s *Store) Edit(ctx context.Context, who Actor, r Replay, f func(*Store) (Outcome, *Change, error)) (Outcome, error) {
	var out Outcome
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		done, err := r.claim(ctx, tx, who.ID, &out)
		if err != nil || done {
			return err
		}
		if err := become(ctx, tx, who); err != nil {
			return err
		}
		var c *Change
		if out, c, err = f(&Store{pool: s.pool, db: tx, lock: " for update"}); err != nil {
			return err
		}
		if c == nil {
			return ErrNoAudit
		}
		if err := audit(ctx, tx, who, c); err != nil {
			return err
		}
		return r.keep(ctx, tx, who, out)
	})
	return out, err
}

// claim takes the key, or finds the answer that was kept under it. A call with
// the same key that is under way is waited for.
func (r Replay) claim(ctx context.Context, tx pgx.Tx, actor string, out *Outcome) (done bool, err error) {
	if r.Key == "" {
		return false, nil
	}
	tag, err := tx.Exec(ctx, `insert into weir.admin_replays as a (actor, key, request, expires_at) values ($1, $2, $3, now() + $4::interval)
		on conflict (actor, key) do update set request = excluded.request, status = 0, sealed = null, expires_at = excluded.expires_at
		where a.expires_at <= now()`, actor, r.Key, r.Request[:], r.Life)
	if err != nil {
		return false, wrap("claim idempotency key", err)
	}
	if tag.RowsAffected() == 1 {
		return false, nil
	}
	var same bool
	var sealed []byte
	err = tx.QueryRow(ctx, `select request = $3, status, sealed from weir.admin_replays where actor = $1 and key = $2`,
		actor, r.Key, r.Request[:]).Scan(&same, &out.Status, &sealed)
	if err != nil {
		return false, wrap("read idempotency key", err)
	}
	if !same {
		return false, ErrReplayDiffers
	}
	out.Replayed = true
	if out.Body, err = r.Open(sealed); err != nil {
		return false, fmt.Errorf("open the kept answer: %w", err)
	}
	return true, nil
}

func (r Replay) keep(ctx context.Context, tx pgx.Tx, who Actor, out Outcome) error {
	if r.Key == "" {
		return nil
	}
	sealed, err := r.Seal(out.Body)
	if err != nil {
		return fmt.Errorf("seal the answer: %w", err)
	}
	if who.TenantID != "" {
		if _, err := tx.Exec(ctx, `set local role none`); err != nil {
			return wrap("keep answer", err)
		}
	}
	_, err = tx.Exec(ctx, `update weir.admin_replays set status = $3, sealed = $4 where actor = $1 and key = $2`, who.ID, r.Key, out.Status, sealed)
	return wrap("keep answer", err)
}

// SweepReplays removes kept answers that have expired.
func (s *Store) SweepReplays(ctx context.Context) error {
	_, err := s.db.Exec(ctx, `delete from weir.admin_replays where expires_at < now()`)
	return wrap("sweep kept answers", err)
}

func audit(ctx context.Context, tx pgx.Tx, who Actor, c *Change) error {
	before, err := jsonOf(c.Before)
	if err != nil {
		return err
	}
	after, err := jsonOf(c.After)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `insert into weir.audit_log (actor, role, tenant_id, action, object_kind, object_id, before, after, request_id)
		values ($1, $2, nullif($3, '')::uuid, $4, $5, $6, $7, $8, $9)`,
		who.ID, who.Role, c.TenantID, c.Action, c.Kind, c.ObjectID, before, after, who.RequestID)
	return wrap("write audit log", err)
}

func jsonOf(v any) ([]byte, error) {
	if v == nil {
		return nil, nil
	}
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("write audit log: %w", err)
	}
	return b, nil
}
