package testpg_test

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/internal/testpg"
)

func TestMain(m *testing.M) { os.Exit(testpg.Run(m)) }

func TestDatabasesAreApart(t *testing.T) {
	a, b := testpg.Start(t), testpg.Start(t)
	exec(t, a, `insert into weir.tenants (id, name) values (gen_random_uuid(), 'only in a')`)
	if n := count(t, b, `select count(*) from weir.tenants`); n != 0 {
		t.Errorf("b has %d tenants", n)
	}
	if n := count(t, testpg.Empty(t), `select count(*) from pg_namespace where nspname = 'weir'`); n != 0 {
		t.Error("an empty database has the schema")
	}
}

func TestOutage(t *testing.T) {
	s := testpg.NewServer(t)
	exec(t, s.URL(), `create table kept (v int)`)
	s.Stop()
	if _, err := pgx.Connect(t.Context(), s.URL()); err == nil {
		t.Fatal("connected to a stopped server")
	}
	s.Start(t)
	if n := count(t, s.URL(), `select count(*) from kept`); n != 0 {
		t.Errorf("%d rows", n)
	}
	if !strings.Contains(s.Log(), "ready to accept connections") {
		t.Errorf("log: %s", s.Log())
	}
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func exec(t *testing.T, url, sql string) {
	t.Helper()
	if _, err := connect(t, url).Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

func count(t *testing.T, url, sql string) (n int) {
	t.Helper()
	if err := connect(t, url).QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}
