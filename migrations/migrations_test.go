package migrations_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/internal/testpg"
	"github.com/weirhq/weir/migrations"
)

func TestMain(m *testing.M) { os.Exit(testpg.Run(m)) }

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func TestUpTogetherAndAgain(t *testing.T) {
	url := testpg.Empty(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := migrations.Up(t.Context(), url); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	conn := connect(t, url)
	var tables, foreign int
	err := conn.QueryRow(t.Context(), `select count(*) filter (where schemaname = 'weir'),
		count(*) filter (where schemaname not in ('weir', 'pg_catalog', 'information_schema')) from pg_tables`).Scan(&tables, &foreign)
	if err != nil {
		t.Fatal(err)
	}
	if tables < 12 || foreign != 0 {
		t.Errorf("%d tables in weir, %d elsewhere", tables, foreign)
	}
}

func TestNewerSchemaIsRefused(t *testing.T) {
	url := testpg.Start(t)
	conn := connect(t, url)
	if _, err := conn.Exec(t.Context(), `insert into weir.schema_version (version_id, is_applied) values (9999, true)`); err != nil {
		t.Fatal(err)
	}
	err := migrations.Up(t.Context(), url)
	if !errors.Is(err, migrations.ErrNewerSchema) || !strings.Contains(err.Error(), "9999") {
		t.Fatalf("got %v", err)
	}
}

// TestOwnSchemaOnly (requirement 25): what others keep in the database stays
// as it is, and a second migration changes nothing.
func TestOwnSchemaOnly(t *testing.T) {
	url := testpg.Empty(t)
	conn := connect(t, url)
	if _, err := conn.Exec(t.Context(), `create table public.tenants (id int); insert into public.tenants values (7);
		create schema other; create table other.limits (id int)`); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := migrations.Up(t.Context(), url); err != nil {
			t.Fatal(err)
		}
	}
	var kept, foreign int
	err := conn.QueryRow(t.Context(), `select (select id from public.tenants), (select count(*) from pg_tables
		where schemaname not in ('weir', 'pg_catalog', 'information_schema'))`).Scan(&kept, &foreign)
	if err != nil || kept != 7 || foreign != 2 {
		t.Errorf("kept %d, %d foreign tables, %v", kept, foreign, err)
	}
}

// A database of one's own needs no superuser: its owner migrates it, if the
// role for tenants was granted to it or it may make roles.
func TestAnOwnerWithoutSuperuserMigrates(t *testing.T) {
	url := testpg.Empty(t)
	conn := connect(t, url)
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), `drop role if exists plain_owner; create role plain_owner login password 'x'; grant create on database "`+cfg.Database+`" to plain_owner`); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = conn.Exec(context.Background(), `drop owned by plain_owner cascade; drop role plain_owner`) // the cluster goes anyway
	})
	as := strings.Replace(url, "user=weir", "user=plain_owner", 1)
	if err := migrations.Up(t.Context(), as); err == nil || !strings.Contains(err.Error(), "grant weir_tenant to plain_owner") {
		t.Fatalf("without the role: %v", err)
	}
	if _, err := conn.Exec(t.Context(), `grant weir_tenant to plain_owner`); err != nil {
		t.Fatal(err)
	}
	if err := migrations.Up(t.Context(), as); err != nil {
		t.Fatal(err)
	}
	own := connect(t, as)
	for _, sql := range []string{`set role weir_tenant`, `select * from weir.api_keys`} {
		if _, err := own.Exec(t.Context(), sql); err != nil {
			t.Errorf("%s: %v", sql, err)
		}
	}
}

func TestErrorsKeepThePassword(t *testing.T) {
	for _, url := range []string{"postgres://u:hunter2@127.0.0.1:1/x?connect_timeout=1", "postgres://u:hunter2@[bad/x"} {
		err := migrations.Up(t.Context(), url)
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("got %v", err)
		}
	}
}

// version returns the configuration's version.
func version(t *testing.T, conn *pgx.Conn) (v int64) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), `select version from weir.config_version`).Scan(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestConfigurationBumpsItsVersion(t *testing.T) {
	url := testpg.Start(t)
	conn, listener := connect(t, url), connect(t, url)
	if _, err := listener.Exec(t.Context(), `listen weir_config`); err != nil {
		t.Fatal(err)
	}
	const tenant = `'0190c9a4-7f7e-7000-8000-00000000000a'`
	hash := `decode(repeat('00', 32), 'hex')`
	for _, tc := range []struct {
		sql   string
		bumps int64
	}{
		{`insert into weir.tenants (id, name) values (` + tenant + `, 'a')`, 1},
		{`insert into weir.api_keys (id, tenant_id, sha256) values ('abcd', ` + tenant + `, ` + hash + `)`, 1},
		{`update weir.api_keys set last_used_at = now()`, 0},
		{`update weir.api_keys set state = 'revoked'`, 1},
		{`insert into weir.prices (tier, model, effective_from, input, cached_input, output) values ('cloud', 'x', now(), 1, 1, 1)`, 1},
		{`insert into weir.policies (tenant_id, mode) values (` + tenant + `, 'auto')`, 1},
		{`update weir.slo_classes set weight = 2`, 1}, // one statement, many rows
		{`insert into weir.limits (id, tenant_id, kind, window_, limit_) values ('l', ` + tenant + `, 'requests', 'minute', 5)`, 1},
		{`select weir.ensure_usage_day('2026-01-02')`, 0},
	} {
		before := version(t, conn)
		if _, err := conn.Exec(t.Context(), tc.sql); err != nil {
			t.Fatalf("%s: %v", tc.sql, err)
		}
		if got := version(t, conn) - before; got != tc.bumps {
			t.Errorf("%s: version moved by %d, want %d", tc.sql, got, tc.bumps)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if n, err := listener.WaitForNotification(ctx); err != nil || n.Payload == "" {
		t.Errorf("notification %v, %v", n, err)
	}
}

func TestUsageDaysAreMadeOnce(t *testing.T) {
	url := testpg.Start(t)
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			conn, err := pgx.Connect(t.Context(), url)
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close(context.Background())
			if _, err := conn.Exec(t.Context(), `select weir.ensure_usage_day('2026-05-06')`); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	var n int
	err := connect(t, url).QueryRow(t.Context(), `select count(*) from pg_inherits where inhparent = 'weir.usage_ledger'::regclass`).Scan(&n)
	if err != nil || n != 1 {
		t.Errorf("%d partitions, %v", n, err)
	}
}
