package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/tenants"
)

var system = Actor{ID: "system"}

func admin(tenantID string) Actor {
	return Actor{ID: "abcd", Role: TenantAdmin, TenantID: tenantID, RequestID: "r1"}
}

// scoped are the tables with rows of tenants, and the column that says whose.
var scoped = map[string]string{
	"tenants": "id", "api_keys": "tenant_id", "admin_tokens": "tenant_id", "devices": "tenant_id", "join_tokens": "tenant_id", "limits": "tenant_id", "shadow_refusals": "tenant_id",
	"policies": "tenant_id", "audit_log": "tenant_id", "usage_ledger": "tenant_id", "usage_minute": "tenant_id", "usage_hour": "tenant_id",
}

// TestRowSecurityHoldsWithoutWhere: the second guard. A statement that forgets
// its tenant finds only the actor's rows, and writes nobody else's.
func TestRowSecurityHoldsWithoutWhere(t *testing.T) {
	s := open(t)
	a, b := tenant(t, s, "a"), tenant(t, s, "b")
	for _, id := range []string{a.ID, b.ID} {
		populate(t, s, id)
	}
	err := s.View(t.Context(), admin(a.ID), func(tx *Store) error {
		for table, column := range scoped {
			var mine, others int
			err := tx.db.QueryRow(t.Context(), `select count(*) filter (where `+column+` = $1), count(*) filter (where `+column+` is distinct from $1)
				from weir.`+table, a.ID).Scan(&mine, &others)
			if err != nil || mine == 0 || others != 0 {
				t.Errorf("%s: %d rows of the tenant, %d of others, %v", table, mine, others, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		`insert into weir.limits (id, tenant_id, kind, window_, limit_) values ('x', '` + b.ID + `', 'requests', 'minute', 1)`,
		`insert into weir.audit_log (actor, action, tenant_id) values ('x', 'x', '` + b.ID + `')`,
		`insert into weir.audit_log (actor, action) values ('x', 'x')`,
		`update weir.api_keys set tenant_id = '` + b.ID + `'`,
		`update weir.tenants set name = 'mine'`,
		`update weir.config_version set version = 0`,
		`delete from weir.api_keys`,
		`update weir.slo_classes set band = 0`,
		`insert into weir.prices (tier, model, effective_from, input, cached_input, output) values ('cloud', 'x', now(), 0, 0, 0)`,
		`select sealed from weir.admin_replays`,
	} {
		_, err := s.Edit(t.Context(), admin(a.ID), Replay{}, func(tx *Store) (Outcome, *Change, error) {
			_, err := tx.db.Exec(t.Context(), sql)
			return Outcome{}, &Change{TenantID: a.ID, Action: "x"}, err
		})
		if err == nil {
			t.Errorf("allowed: %s", sql)
		}
	}
	var n int
	err = s.View(t.Context(), Actor{ID: "p", Role: PlatformAdmin}, func(tx *Store) error {
		return tx.db.QueryRow(t.Context(), `select count(*) from weir.tenants`).Scan(&n)
	})
	if err != nil || n != 2 {
		t.Errorf("the platform sees %d tenants, %v", n, err)
	}
}

// populate adds a row of the tenant to every scoped table.
func populate(t *testing.T, s *Store, id string) {
	t.Helper()
	ctx := t.Context()
	_, _, err1 := s.CreateKey(ctx, NewKey{TenantID: id})
	_, _, err2 := s.CreateAdminToken(ctx, NewAdminToken{Role: TenantAdmin, TenantID: id})
	_, _, err3 := s.CreateJoinToken(ctx, NewJoinToken{TenantID: id}, tenants.Pin{})
	_, err4 := s.CreateLimit(ctx, NewLimit{TenantID: id, Kind: "requests", Window: "minute", Limit: 5})
	_, err5 := s.PutPolicy(ctx, Policy{TenantID: id, Mode: "auto"})
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		t.Fatal(err)
	}
	if _, err := s.db.Exec(ctx, `select weir.ensure_usage_day('2026-01-01')`); err != nil {
		t.Fatal(err)
	}
	sums := `'2026-01-01', $1, '', 'cloud', 'm', '', 'ok', 1, 1, 1, 0, 1, 0, 5, 1, 1, 1`
	for _, sql := range []string{
		`insert into weir.devices (id, tenant_id, key_sha256, cert_not_after) values (gen_random_uuid(), $1, decode(repeat('00', 32), 'hex'), now())`,
		`insert into weir.audit_log (actor, action, tenant_id) values ('system', 'x', $1)`,
		`insert into weir.shadow_refusals select id, tenant_id, 3 from weir.limits where tenant_id = $1`,
		`insert into weir.usage_minute values (` + sums + `)`, `insert into weir.usage_hour values (` + sums + `)`,
		`insert into weir.usage_ledger (day, attempt_id, tenant_id, device_id, operation_id, key_id, tier, model, class, outcome, usage_source, input_tokens,
			cached_tokens, output_tokens, reasoning_tokens, price_version, cost_nanousd, started_at, ttft_us, total_us, error_code, reason, node, node_epoch)
			select '2026-01-01', gen_random_uuid(), $1, gen_random_uuid(), gen_random_uuid(), '', 'cloud', 'm', '', 'ok', 'counted', 1, 0, 1, 0, 1, 5,
			'2026-01-01', 1, 1, '', '', '', ''`,
	} {
		if _, err := s.db.Exec(ctx, sql, id); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

// A change and its entry in the audit log are there together or not at all.
func TestAuditIsInTheSameTransaction(t *testing.T) {
	s := open(t)
	a := tenant(t, s, "a")
	limits := func() int {
		l, err := s.Limits(t.Context(), a.ID, Page{})
		if err != nil {
			t.Fatal(err)
		}
		return len(l)
	}
	make := func(tx *Store) (Limit, error) {
		return tx.CreateLimit(t.Context(), NewLimit{TenantID: a.ID, Kind: "requests", Window: "day", Limit: 5})
	}
	boom := errors.New("boom")
	for name, end := range map[string]func(Limit) (*Change, error){
		"the change fails": func(Limit) (*Change, error) { return &Change{Action: "x"}, boom },
		"no entry":         func(Limit) (*Change, error) { return nil, nil },
		"bad entry":        func(Limit) (*Change, error) { return &Change{Action: strings.Repeat("x", 65)}, nil },
	} {
		_, err := s.Edit(t.Context(), system, Replay{}, func(tx *Store) (Outcome, *Change, error) {
			l, err := make(tx)
			if err != nil {
				return Outcome{}, nil, err
			}
			c, err := end(l)
			return Outcome{}, c, err
		})
		if err == nil || limits() != 0 {
			t.Errorf("%s: %v, %d limits", name, err, limits())
		}
	}
	_, err := s.Edit(t.Context(), admin(a.ID), Replay{}, func(tx *Store) (Outcome, *Change, error) {
		l, err := make(tx)
		return Outcome{}, &Change{TenantID: a.ID, Action: "limit.create", Kind: "limit", ObjectID: l.ID, After: l}, err
	})
	log, err2 := s.AuditLog(t.Context(), AuditQuery{TenantID: a.ID}, Page{})
	if err != nil || err2 != nil || limits() != 1 || len(log) != 1 {
		t.Fatalf("%v %v, %d limits, log %+v", err, err2, limits(), log)
	}
	e := log[0]
	if e.Actor != "abcd" || e.Role != "tenant_admin" || e.Action != "limit.create" || e.Before != nil || !strings.Contains(string(e.After), `"limit": 5`) || e.RequestID != "r1" {
		t.Errorf("entry %+v", e)
	}
	if _, err := s.db.Exec(t.Context(), `delete from weir.audit_log`); err == nil {
		t.Error("an entry was deleted")
	}
}

func TestReplays(t *testing.T) {
	s := open(t)
	a := tenant(t, s, "a")
	made := 0
	var mu sync.Mutex
	turn := func(b []byte) ([]byte, error) {
		out := make([]byte, len(b))
		for i := range b {
			out[len(b)-1-i] = b[i]
		}
		return out, nil
	}
	edit := func(who Actor, key string, request byte, f func() error) (Outcome, error) {
		r := Replay{Key: key, Request: [32]byte{request}, Life: time.Hour, Seal: turn, Open: turn}
		return s.Edit(t.Context(), who, r, func(tx *Store) (Outcome, *Change, error) {
			if f != nil {
				return Outcome{}, nil, f()
			}
			mu.Lock()
			defer mu.Unlock()
			made++
			return Outcome{Status: 201, Body: fmt.Appendf(nil, "secret-%d", made)}, &Change{TenantID: a.ID, Action: "x"}, nil
		})
	}
	if _, err := edit(admin(a.ID), "k", 1, func() error { return errors.New("failed") }); err == nil {
		t.Fatal("no error")
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if out, err := edit(admin(a.ID), "k", 1, nil); err != nil || string(out.Body) != "secret-1" || out.Status != 201 {
				t.Errorf("got %+v, %v", out, err)
			}
		})
	}
	wg.Wait()
	if _, err := edit(admin(a.ID), "k", 2, nil); !errors.Is(err, ErrReplayDiffers) {
		t.Errorf("another request: %v", err)
	}
	if out, err := edit(Actor{ID: "other"}, "k", 2, nil); err != nil || string(out.Body) != "secret-2" {
		t.Errorf("another actor: %+v, %v", out, err)
	}
	var clear int
	if err := s.db.QueryRow(t.Context(), `select count(*) from weir.admin_replays where convert_from(sealed, 'UTF8') like 'secret%'`).Scan(&clear); err != nil || clear != 0 {
		t.Errorf("%d answers in clear, %v", clear, err)
	}
	if _, err := s.db.Exec(t.Context(), `update weir.admin_replays set expires_at = now() - interval '1 s'`); err != nil {
		t.Fatal(err)
	}
	if out, err := edit(admin(a.ID), "k", 3, nil); err != nil || string(out.Body) != "secret-3" {
		t.Errorf("after its life: %+v, %v", out, err)
	}
	if err := s.SweepReplays(context.Background()); err != nil {
		t.Error(err)
	}
}

func TestTheLastPlatformAdminStays(t *testing.T) {
	s := open(t)
	one, _, err := s.CreateAdminToken(t.Context(), NewAdminToken{Role: PlatformAdmin})
	if err != nil {
		t.Fatal(err)
	}
	revoke := func(id string) error {
		_, err := s.Edit(t.Context(), system, Replay{}, func(tx *Store) (Outcome, *Change, error) {
			_, err := tx.RevokeAdminToken(t.Context(), "", id)
			return Outcome{}, &Change{Action: "x"}, err
		})
		return err
	}
	if err := revoke(one.ID); !errors.Is(err, ErrLastAdmin) {
		t.Fatalf("got %v", err)
	}
	two, _, err := s.CreateAdminToken(t.Context(), NewAdminToken{Role: PlatformAdmin})
	if err != nil {
		t.Fatal(err)
	}
	if err := revoke(one.ID); err != nil {
		t.Error(err)
	}
	if err := revoke(two.ID); !errors.Is(err, ErrLastAdmin) {
		t.Errorf("the second: %v", err)
	}
}
