package control

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/cloud/pool"
	"github.com/weirhq/weir/internal/testpg"
)

// TestMembershipOutlivesTheDatabase: the pool is told nothing while it is away,
// and a worker goes on trying.
func TestMembershipOutlivesTheDatabase(t *testing.T) {
	pg := testpg.NewServer(t)
	fleet := &onePool{}
	o := options(t, pg.URL())
	o.Pools, o.Heartbeat = []string{"big"}, 50*time.Millisecond
	p := startWith(t, o, fleet)
	p.ready(t)
	m := p.joinWorker(t, "w", t.TempDir(), p.newWorkerToken(t, 1))
	stop := run(t, m)
	m.Tell(registration("e1"))
	eventually(t, "it is a member", func() bool { return fleet.names() == "w/e1" })
	pg.Stop()
	eventually(t, "the database is away", func() bool { return !p.DatabaseUp() })
	m.Tell(registration("e2")) // nobody can note it now
	if fleet.names() != "w/e1" {
		t.Errorf("members without the database: %s", fleet.names())
	}
	late := &onePool{} // of a gateway that starts now, on the same disk
	keptBy(t, o, late)
	if late.names() != "w/e1" {
		t.Errorf("members of a start without the database: %s", late.names())
	}
	path := filepath.Join(o.DataDir, keptMembersFile)
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	forged := strings.Replace(string(file), `"members":"`, `"members":"W3sifV0`, 1)
	for _, bad := range []string{forged, "{", "{}"} {
		if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		none := &onePool{}
		if keptBy(t, o, none); none.names() != "" {
			t.Errorf("members of the file %.40s: %s", bad, none.names())
		}
	}
	pg.Start(t)
	eventually(t, "it has registered", func() bool { return fleet.names() == "w/e2" })
	if err := stop(); err != nil {
		t.Errorf("the membership ended with %v", err)
	}
}

// keptBy gives fleet what a control plane with o knows before it runs.
func keptBy(t *testing.T, o Options, fleet Instances) {
	t.Helper()
	c, err := New(Options{DatabaseURL: o.DatabaseURL, SecretsDir: o.SecretsDir, DataDir: filepath.Join(t.TempDir(), "x"), Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	c.o.DataDir = o.DataDir // but for its usage rows, which one process holds
	c.Attach(fleet)
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if err := c.Run(ended); err != nil {
		t.Error(err)
	}
}

var _ Instances = (*pool.Pool)(nil)
