package roster_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/edge/internal/cloudtest"
	"github.com/weirhq/weir/edge/roster"
	"github.com/weirhq/weir/edge/uplink"
	"github.com/weirhq/weir/internal/testproc"
	"github.com/weirhq/weir/tenants"
)

func TestMain(m *testing.M) { testproc.VerifyMain(m) }

// served is a cloud that answers from memory.
type served struct {
	answers []answer
	asked   []http.Header
	told    chan struct{}
}

type answer struct {
	status int
	body   []byte
	etag   string
	err    error
}

func (s *served) Do(_ context.Context, r uplink.Request) (*uplink.Response, error) {
	s.asked = append(s.asked, r.Header)
	a := s.answers[min(len(s.asked), len(s.answers))-1]
	if s.told != nil {
		select {
		case s.told <- struct{}{}:
		default:
		}
	}
	if a.err != nil {
		return nil, a.err
	}
	return &uplink.Response{Response: &http.Response{StatusCode: a.status, Header: http.Header{"Etag": {a.etag}}, Body: io.NopCloser(bytes.NewReader(a.body))}}, nil
}

func open(t *testing.T, c *cloudtest.Cloud, path string) *roster.Roster {
	t.Helper()
	r, err := roster.Open(path, cloudtest.Tenant, c.Signer.Public().(ed25519.PublicKey), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func sign(t *testing.T, c *cloudtest.Cloud, version int64, change func(*tenants.Snapshot)) []byte {
	t.Helper()
	s := c.DefaultSnapshot(version)
	if change != nil {
		change(s)
	}
	env, err := s.Sign(c.Signer)
	if err != nil {
		t.Fatal(err)
	}
	return env
}

func TestUpdateKeepsAndComesBack(t *testing.T) {
	c := cloudtest.Start(t)
	path := filepath.Join(t.TempDir(), "snapshot.json")
	r := open(t, c, path)
	if r.View() != nil {
		t.Fatal("a snapshot from nowhere")
	}
	if err := r.Update(sign(t, c, 3, nil), `"3"`); err != nil {
		t.Fatal(err)
	}
	again := open(t, c, path)
	if again.View() == nil || again.View().Snapshot().Version != 3 {
		t.Fatal("the kept snapshot did not come back")
	}
	if _, err := again.View().Lookup(c.Key.Reveal(), time.Now()); err != nil {
		t.Errorf("key from the kept snapshot: %v", err)
	}
	if again.ETag(time.Now()) != "" {
		t.Error("a kept snapshot has no entity tag: it must be fetched whole once")
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the kept snapshot: %v %v", info.Mode(), err)
	}
}

func TestUpdateRefuses(t *testing.T) {
	c, other := cloudtest.Start(t), cloudtest.Start(t)
	r := open(t, c, filepath.Join(t.TempDir(), "s"))
	if err := r.Update(sign(t, c, 5, nil), ""); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		env  []byte
		want error
	}{
		"older":          {sign(t, c, 4, nil), roster.ErrStale},
		"foreign cloud":  {sign(t, other, 9, nil), tenants.ErrSnapshotSignature},
		"damaged":        {bytes.Replace(sign(t, c, 9, nil), []byte(`"payload":"e`), []byte(`"payload":"f`), 1), tenants.ErrSnapshotSignature},
		"another tenant": {sign(t, c, 9, func(s *tenants.Snapshot) { s.Tenants[0].ID, s.Keys[0].TenantID = "x", "x" }), nil},
		"nonsense":       {[]byte("{"), nil},
	} {
		err := r.Update(tt.env, "")
		if err == nil || (tt.want != nil && !errors.Is(err, tt.want)) {
			t.Errorf("%s: %v", name, err)
		}
		if r.View().Snapshot().Version != 5 {
			t.Errorf("%s took the old snapshot out of use", name)
		}
	}
}

func TestOpenSurvivesADamagedFile(t *testing.T) {
	c := cloudtest.Start(t)
	path := filepath.Join(t.TempDir(), "s")
	for _, content := range []string{"", "{}", strings.Repeat("x", 1000)} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if r := open(t, c, path); r.View() != nil {
			t.Errorf("%.10q is in use", content)
		}
	}
}

func TestPoll(t *testing.T) {
	c := cloudtest.Start(t)
	r := open(t, c, filepath.Join(t.TempDir(), "s"))
	s := &served{answers: []answer{
		{status: 200, body: sign(t, c, 1, nil), etag: `"1"`}, {status: 304}, {status: 500, body: []byte(`{"error":{"message":"no"}}`)}, {err: uplink.ErrDown},
	}}
	for i, fails := range []bool{false, false, true, true} {
		if err := r.Poll(context.Background(), s); (err != nil) != fails {
			t.Errorf("poll %d: %v", i, err)
		}
	}
	if got := s.asked[0].Get("If-None-Match"); got != "" {
		t.Errorf("first poll is conditional: %s", got)
	}
	if got := s.asked[1].Get("If-None-Match"); got != `"1"` {
		t.Errorf("second poll: %q", got)
	}
	if r.View().Snapshot().Version != 1 {
		t.Error("the snapshot is gone")
	}
}

// A snapshot that ends soon is fetched whole, whatever its tag says.
func TestETagNearExpiry(t *testing.T) {
	c := cloudtest.Start(t)
	r := open(t, c, filepath.Join(t.TempDir(), "s"))
	if err := r.Update(sign(t, c, 1, nil), `"1"`); err != nil {
		t.Fatal(err)
	}
	if r.ETag(time.Now()) == "" || r.ETag(time.Now().Add(20*time.Hour)) != "" {
		t.Error("the entity tag does not look at the expiry")
	}
}

func TestRunPollsUntilItEnds(t *testing.T) {
	c := cloudtest.Start(t)
	r := open(t, c, filepath.Join(t.TempDir(), "s"))
	s := &served{answers: []answer{{err: uplink.ErrDown}, {status: 200, body: sign(t, c, 1, nil)}}, told: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx, s, time.Millisecond) }()
	deadline := time.Now().Add(time.Minute)
	for r.View() == nil && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-done; err != nil || r.View() == nil {
		t.Errorf("Run: %v, view %v", err, r.View())
	}
}
