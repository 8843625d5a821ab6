package store

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/tenants"
)

// Snapshot loads the whole configuration as of one moment. Models, IssuedAt
// and ExpiresAt are the caller's to set.
func (s *Store) Snapshot(ctx context.Context) (*tenants.Snapshot, error) {
	var snap tenants.Snapshot
	o := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err := pgx.BeginTxFunc(ctx, s.pool, o, func(tx pgx.Tx) error {
		l := loader{ctx: ctx, tx: tx}
		if err := tx.QueryRow(ctx, `select version from weir.config_version`).Scan(&snap.Version); err != nil {
			return err
		}
		snap.Tenants = load(&l, `select id::text, name, state, weight, strict from weir.tenants order by id`, scanTenantInfo)
		snap.Keys = load(&l, `select id, tenant_id::text, sha256, prev_sha256, prev_not_after, state, expires_at, scopes, models, classes
			from weir.api_keys order by id`, scanKeyInfo)
		snap.Classes = load(&l, `select name, ttft_ms, tpot_ms, e2e_ms, band, weight, sheddable, max_queue_ms,
			escalations_per_minute, default_deadline_ms, is_default from weir.slo_classes order by band, name`, scanClass)
		snap.Prices = load(&l, `select version, tier, model, effective_from, input, cached_input, output from weir.prices order by version`, scanPrice)
		snap.Limits = load(&l, `select id, tenant_id::text, coalesce(key_id, ''), model, tier, class, kind, window_, limit_, burst, shadow
			from weir.limits order by id`, scanLimit)
		snap.Policies = load(&l, `select tenant_id::text, class, mode, threshold, spec from weir.policies order by tenant_id, class`, scanPolicy)
		return l.err
	})
	if err != nil {
		return nil, wrap("load tenants", err)
	}
	return &snap, nil
}

// loader runs queries of one transaction until one fails.
type loader struct {
	ctx context.Context
	tx  pgx.Tx
	err error
}

func load[T any](l *loader, sql string, scan func(pgx.CollectableRow) (T, error)) []T {
	if l.err != nil {
		return nil
	}
	rows, err := l.tx.Query(l.ctx, sql)
	if err != nil {
		l.err = err
		return nil
	}
	out, err := pgx.CollectRows(rows, scan)
	l.err = err
	return out
}

func scanTenantInfo(r pgx.CollectableRow) (t tenants.Tenant, err error) {
	err = r.Scan(&t.ID, &t.Name, &t.State, &t.Weight, &t.Strict)
	return t, err
}

func scanKeyInfo(r pgx.CollectableRow) (k tenants.KeyInfo, err error) {
	var now, prev []byte
	var prevEnd, expires *time.Time
	err = r.Scan(&k.ID, &k.TenantID, &now, &prev, &prevEnd, &k.State, &expires, &k.Scopes, &k.Models, &k.Classes)
	if err != nil {
		return k, err
	}
	k.Hashes = append(k.Hashes, tenants.SecretHash{SHA256: tenants.Hash(now)})
	if prev != nil && prevEnd != nil {
		k.Hashes = append(k.Hashes, tenants.SecretHash{SHA256: tenants.Hash(prev), NotAfter: prevEnd.UTC()})
	}
	if expires != nil {
		k.ExpiresAt = expires.UTC()
	}
	return k, nil
}

func scanClass(r pgx.CollectableRow) (c tenants.Class, err error) {
	err = r.Scan(&c.Name, &c.TTFTMillis, &c.TPOTMillis, &c.E2EMillis, &c.Band, &c.Weight, &c.Sheddable,
		&c.MaxQueueMillis, &c.EscalationsPerMinute, &c.DefaultDeadlineMs, &c.Default)
	return c, err
}

func scanPrice(r pgx.CollectableRow) (p tenants.Price, err error) {
	err = r.Scan(&p.Version, &p.Tier, &p.Model, &p.EffectiveFrom, &p.Input, &p.CachedInput, &p.Output)
	p.EffectiveFrom = p.EffectiveFrom.UTC()
	return p, err
}

func scanLimit(r pgx.CollectableRow) (l tenants.Limit, err error) {
	err = r.Scan(&l.ID, &l.TenantID, &l.KeyID, &l.Model, &l.Tier, &l.Class, &l.Kind, &l.Window, &l.Limit, &l.Burst, &l.Shadow)
	return l, err
}

func scanPolicy(r pgx.CollectableRow) (p tenants.Policy, err error) {
	var spec []byte
	err = r.Scan(&p.TenantID, &p.Class, &p.Mode, &p.Threshold, &spec)
	p.Spec = json.RawMessage(spec)
	return p, err
}
