package control

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/cloud/gateway"
	"github.com/weirhq/weir/internal/testpg"
	"github.com/weirhq/weir/migrations"
	"github.com/weirhq/weir/tenants"
)

func TestFirstStart(t *testing.T) {
	p := start(t, options(t, testpg.Empty(t)))
	p.ready(t)
	st, err := os.Stat(filepath.Join(p.o.SecretsDir, AdminTokenFile))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Fatalf("admin token file: %v, %v", st, err)
	}
	tenantID := p.newTenant(t, "acme")
	keyID, key := p.newKey(t, tenantID)
	eventually(t, "the key is accepted", func() bool {
		id, err := p.Index().Lookup(key, time.Now())
		return err == nil && id.KeyID == keyID && id.TenantID == tenantID
	})
	if m := p.Index().Model("auto"); m == nil || !m.Cascade {
		t.Error("the configured models are not in the snapshot")
	}
	p.admin(t, http.MethodPost, "keys/"+keyID+"/revoke", nil).into(t, &struct{}{})
	eventually(t, "the key is refused", func() bool {
		_, err := p.Index().Lookup(key, time.Now())
		return errors.Is(err, tenants.ErrKeyRevoked)
	})

	// A second start keeps the token.
	token := p.adminToken(t)
	if err := p.stop(); err != nil {
		t.Fatal(err)
	}
	again := start(t, p.o)
	again.ready(t)
	if again.adminToken(t) != token {
		t.Error("the second start made another admin token")
	}
}

func TestRecordedRowsReachTheLedger(t *testing.T) {
	p := start(t, options(t, testpg.Start(t)))
	p.ready(t)
	tenantID := p.newTenant(t, "acme")
	keyID, _ := p.newKey(t, tenantID)
	row := aRow(tenantID, keyID)
	p.record(t, row)
	if err := p.stop(); err != nil { // the end writes what is queued
		t.Fatal(err)
	}
	if s := p.Rows().Stats(); s.Inserted != 1 || s.Lost != 0 {
		t.Fatalf("stats %+v", s)
	}
	p = start(t, p.o)
	p.ready(t)
	got, err := p.Usage(t.Context(), gateway.UsageQuery{TenantID: tenantID, From: row.StartedAt.Add(-time.Hour), To: row.StartedAt.Add(time.Hour), Limit: 5})
	if err != nil {
		t.Fatal(err)
	}
	if r, ok := got.(ownUsage); !ok || len(r.Rows) != 1 || r.Totals.InputTokens != 5 {
		t.Errorf("got %+v", got)
	}
	var seen usageAnswer
	p.admin(t, http.MethodGet, "usage?operation_id="+row.OperationID, nil).into(t, &seen)
	if len(seen.Rows) != 1 || seen.Rows[0].AttemptID != row.AttemptID {
		t.Errorf("admin's view %+v", seen)
	}
}

func TestNewerSchemaEndsRun(t *testing.T) {
	url := testpg.Start(t)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), `insert into weir.schema_version (version_id, is_applied) values (9999, true)`); err != nil {
		t.Fatal(err)
	}
	c, err := New(options(t, url))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Run(t.Context()); !errors.Is(err, migrations.ErrNewerSchema) {
		t.Errorf("got %v", err)
	}
}

func TestOutageAndColdStart(t *testing.T) {
	server := testpg.NewServer(t)
	p := start(t, options(t, server.URL()))
	p.ready(t)
	tenantID := p.newTenant(t, "acme")
	_, key := p.newKey(t, tenantID)
	known := func(p *plane) bool {
		x := p.Index()
		if x == nil {
			return false
		}
		_, err := x.Lookup(key, time.Now())
		return err == nil
	}
	eventually(t, "the key is accepted", func() bool { return known(p) })
	d := p.joinDevice(t, tenantID)
	spare := p.newJoinToken(t, tenantID)

	server.Stop()
	eventually(t, "the outage is noticed", func() bool { return !p.DatabaseUp() })
	if !known(p) {
		t.Error("a known key was forgotten")
	}
	if a := d.call(t, http.MethodGet, "snapshot", nil); a.status != http.StatusOK {
		t.Errorf("snapshot during the outage: %s", a)
	}
	for name, a := range map[string]answer{
		"admin": p.admin(t, http.MethodGet, "tenants", nil),
		"usage": d.call(t, http.MethodPost, "usage", usageBatch(edgeRow())),
		"join":  p.join(t, spare),
	} {
		if a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "" {
			t.Errorf("%s during the outage: %s", name, a)
		}
	}

	t.Run("cold start without the database", func(t *testing.T) {
		if err := p.stop(); err != nil {
			t.Fatal(err)
		}
		cold := start(t, p.o)
		if !known(cold) || cold.DatabaseUp() {
			t.Fatal("the kept snapshot is not used")
		}
		server.Start(t)
		cold.ready(t)
		if a := cold.admin(t, http.MethodGet, "tenants", nil); a.status != http.StatusOK {
			t.Errorf("after the outage: %s", a)
		}
	})
	t.Run("cold start without anything", func(t *testing.T) {
		o := options(t, server.URL())
		server.Stop()
		bare := start(t, o)
		if bare.Index() != nil {
			t.Fatal("an index out of nothing")
		}
		server.Start(t)
		bare.ready(t)
	})
	t.Run("a snapshot that others have written is not used", func(t *testing.T) {
		o := options(t, server.URL())
		o.DataDir = p.o.DataDir // signed with the key of other secrets
		c, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		if c.Index() != nil {
			t.Error("a snapshot with a foreign signature was used")
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := c.Run(ended); err != nil { // gives the directory up
			t.Error(err)
		}
	})
}

// A database that hangs is worse than one that refuses: nothing may wait for
// it longer than its own timeout.
func TestHungDatabase(t *testing.T) {
	server := testpg.NewServer(t)
	p := start(t, options(t, server.URL()))
	p.ready(t)
	_, key := p.newKey(t, p.newTenant(t, "acme"))
	eventually(t, "the key is accepted", func() bool { _, err := p.Index().Lookup(key, time.Now()); return err == nil })
	server.Pause(t)
	eventually(t, "the hang is noticed", func() bool { return !p.DatabaseUp() })
	if _, err := p.Index().Lookup(key, time.Now()); err != nil {
		t.Errorf("known key: %v", err)
	}
	if a := p.admin(t, http.MethodGet, "tenants", nil); a.status != http.StatusServiceUnavailable {
		t.Errorf("admin: %s", a)
	}
	server.Resume()
	eventually(t, "the database is back", p.DatabaseUp)
	if a := p.admin(t, http.MethodGet, "tenants", nil); a.status != http.StatusOK {
		t.Errorf("afterwards: %s", a)
	}

	server.Pause(t)
	p.record(t, aRow(uuid.NewString(), ""))
	ended := make(chan error, 1)
	go func() { ended <- p.stop() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the end waits for a hung database")
	}
}

func TestNewNeedsItsOptions(t *testing.T) {
	if _, err := New(Options{Log: quiet}); err == nil {
		t.Error("no secrets directory, no database: accepted")
	}
	o := options(t, "postgres://u:hunter2@[bad/x")
	if _, err := New(o); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("got %v", err)
	}
}
