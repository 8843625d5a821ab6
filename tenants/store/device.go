package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/tenants"
)

// Device is an edge node as the admin API shows it.
type Device struct {
	ID           string        `json:"id"`
	TenantID     string        `json:"tenant_id"`
	Name         string        `json:"name"`
	State        tenants.State `json:"state"`
	JoinedAt     time.Time     `json:"joined_at"`
	CertNotAfter time.Time     `json:"cert_not_after"`
	LastSeenAt   *time.Time    `json:"last_seen_at"`
}

const deviceColumns = `id::text, tenant_id::text, name, state, joined_at, cert_not_after, last_seen_at`

func scanDevice(r pgx.CollectableRow) (d Device, err error) {
	err = r.Scan(&d.ID, &d.TenantID, &d.Name, &d.State, &d.JoinedAt, &d.CertNotAfter, &d.LastSeenAt)
	utc(&d.JoinedAt, &d.CertNotAfter, d.LastSeenAt)
	return d, err
}

// Devices lists devices, oldest first; only the tenant's when given.
func (s *Store) Devices(ctx context.Context, tenant string, p Page) ([]Device, error) {
	return list(ctx, s, "list devices", scanDevice,
		`select `+deviceColumns+` from weir.devices
		where ($1 = '' or tenant_id::text = $1) and ($2 = '' or id > (select id from weir.devices where id::text = $2))
		order by id limit $3`, tenant, p.After, p.limit())
}

// DeviceByID returns one device. tenant, when not empty, must be the device's.
func (s *Store) DeviceByID(ctx context.Context, tenant, id string) (Device, error) {
	return one(ctx, s, "read device", scanDevice,
		`select `+deviceColumns+` from weir.devices where id::text = $1 and ($2 = '' or tenant_id::text = $2)`, id, tenant)
}

// Seen notes that devices have called at the times given, in one statement.
func (s *Store) Seen(ctx context.Context, at map[string]time.Time) error {
	if len(at) == 0 {
		return nil
	}
	ids, times := make([]string, 0, len(at)), make([]time.Time, 0, len(at))
	for id, t := range at {
		ids, times = append(ids, id), append(times, t)
	}
	_, err := s.db.Exec(ctx, `update weir.devices d set last_seen_at = greatest(d.last_seen_at, s.at)
		from unnest($1::uuid[], $2::timestamptz[]) as s (id, at) where d.id = s.id`, ids, times)
	return wrap("note devices seen", err)
}

// KeysUsed notes when keys were last used, in one statement.
func (s *Store) KeysUsed(ctx context.Context, at map[string]time.Time) error {
	return s.used(ctx, "weir.api_keys", at)
}

// AdminTokensUsed notes when admin tokens were last used, in one statement.
func (s *Store) AdminTokensUsed(ctx context.Context, at map[string]time.Time) error {
	return s.used(ctx, "weir.admin_tokens", at)
}

func (s *Store) used(ctx context.Context, table string, at map[string]time.Time) error {
	if len(at) == 0 {
		return nil
	}
	ids, times := make([]string, 0, len(at)), make([]time.Time, 0, len(at))
	for id, t := range at {
		ids, times = append(ids, id), append(times, t)
	}
	_, err := s.db.Exec(ctx, `update `+table+` k set last_used_at = greatest(k.last_used_at, s.at)
		from unnest($1::text[], $2::timestamptz[]) as s (id, at) where k.id = s.id`, ids, times)
	return wrap("note last use in "+table, err)
}
