package store

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Learned is what a device has learned of its model.
type Learned struct {
	TenantID    string
	DeviceID    string
	Fingerprint string          // of the edge model
	Report      json.RawMessage // package cascade/learn reads it
}

// PutLearned replaces the device's report.
func (s *Store) PutLearned(ctx context.Context, l Learned) error {
	_, err := s.db.Exec(ctx, `insert into weir.cascade_reports (device_id, tenant_id, fingerprint, report) values ($1, $2, $3, $4::jsonb)
		on conflict (device_id) do update set fingerprint = excluded.fingerprint, report = excluded.report, updated_at = now()
		where cascade_reports.tenant_id = excluded.tenant_id`,
		l.DeviceID, l.TenantID, l.Fingerprint, string(l.Report))
	if err != nil {
		return fmt.Errorf("keep cascade report: %w", err)
	}
	return nil
}

// LearnedBy lists the newest reports of a tenant's devices, at most n: of one
// model where fingerprint is not empty, and without those of the device except.
func (s *Store) LearnedBy(ctx context.Context, tenant, fingerprint, except string, n int) ([]json.RawMessage, error) {
	return list(ctx, s, "list cascade reports", func(r pgx.CollectableRow) (report json.RawMessage, err error) {
		var b []byte
		err = r.Scan(&b)
		return b, err
	}, `select report from weir.cascade_reports
		where tenant_id::text = $1 and ($2 = '' or fingerprint = $2) and device_id::text <> $3
		order by updated_at desc, device_id limit $4`, tenant, fingerprint, except, n)
}
