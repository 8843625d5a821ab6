package store

import (
	"context"
	"encoding/json"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// AuditEntry is one change as the admin API shows it.
type AuditEntry struct {
	ID         int64           `json:"id"`
	At         time.Time       `json:"at"`
	Actor      string          `json:"actor"` // id of an admin token, or "system"
	Role       string          `json:"role"`
	TenantID   *string         `json:"tenant_id"` // null: of the platform
	Action     string          `json:"action"`
	ObjectKind string          `json:"object_kind"`
	ObjectID   string          `json:"object_id"`
	Before     json.RawMessage `json:"before"` // null: it was not there
	After      json.RawMessage `json:"after"`  // null: it is gone
	RequestID  string          `json:"request_id"`
}

// AuditQuery selects entries. Empty members select all.
type AuditQuery struct {
	TenantID           string
	Actor              string
	ObjectKind, Object string
	Action             string
	From, To           time.Time // zero: open
}

// AuditLog lists entries, newest first.
func (s *Store) AuditLog(ctx context.Context, q AuditQuery, p Page) ([]AuditEntry, error) {
	var after *int64
	if p.After != "" {
		n, err := strconv.ParseInt(p.After, 10, 64)
		if err != nil {
			return nil, badField("after", "not a cursor of this list")
		}
		after = &n
	}
	return list(ctx, s, "read audit log", scanAudit, `select id, at, actor, role, tenant_id::text, action, object_kind, object_id,
			before, after, request_id from weir.audit_log
		where ($1 = '' or tenant_id = nullif($1, '')::uuid) and ($2 = '' or actor = $2) and ($3 = '' or object_kind = $3)
		and ($4 = '' or object_id = $4) and ($5 = '' or action = $5) and ($6::timestamptz is null or at >= $6)
		and ($7::timestamptz is null or at < $7) and ($8::bigint is null or id < $8)
		order by id desc limit $9`,
		q.TenantID, q.Actor, q.ObjectKind, q.Object, q.Action, orNull(q.From), orNull(q.To), after, p.limit())
}

func orNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func scanAudit(r pgx.CollectableRow) (e AuditEntry, err error) {
	var before, after []byte
	err = r.Scan(&e.ID, &e.At, &e.Actor, &e.Role, &e.TenantID, &e.Action, &e.ObjectKind, &e.ObjectID, &before, &after, &e.RequestID)
	e.At, e.Before, e.After = e.At.UTC(), before, after
	return e, err
}
