package identity_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirhq/weir/edge/identity"
	"github.com/weirhq/weir/edge/internal/cloudtest"
	"github.com/weirhq/weir/internal/enroll"
	"github.com/weirhq/weir/internal/pki"
	"github.com/weirhq/weir/internal/testproc"
	"github.com/weirhq/weir/tenants"
)

func TestMain(m *testing.M) { testproc.VerifyMain(m) }

func TestJoinOnce(t *testing.T) {
	c := cloudtest.Start(t)
	dir := filepath.Join(t.TempDir(), "state", "identity")
	if _, err := identity.Load(dir); !errors.Is(err, identity.ErrNone) {
		t.Fatalf("no identity yet: %v", err)
	}
	token := c.MintToken(t)
	id, err := identity.Join(context.Background(), dir, c.URL, token)
	if err != nil {
		t.Fatal(err)
	}
	if id.DeviceID != cloudtest.Device || id.TenantID != cloudtest.Tenant || id.CloudURL != c.URL {
		t.Errorf("identity %+v", id)
	}
	again, err := identity.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if again.DeviceID != id.DeviceID || !again.NotAfter.After(id.NotAfter.AddDate(0, 0, -1)) || string(again.SnapshotKey) != string(id.SnapshotKey) {
		t.Errorf("loaded %+v", again)
	}
	if _, err := again.TLS(); err != nil {
		t.Error(err)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if info, _ := f.Info(); info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %o", f.Name(), info.Mode().Perm())
		}
	}
	left, err := os.ReadDir(filepath.Dir(dir))
	if err != nil || len(left) != 1 {
		t.Errorf("beside the identity lies %v: %v", left, err)
	}

	_, err = identity.Join(context.Background(), filepath.Join(t.TempDir(), "other"), c.URL, token)
	if !errors.Is(err, enroll.ErrRefused) || enroll.Temporary(err) {
		t.Errorf("a used token: %v", err)
	}
	if strings.Contains(err.Error(), token.Secret.Reveal()) {
		t.Error("the error holds the token's secret")
	}
}

// A server with another authority gets nothing at all.
func TestJoinChecksThePinFirst(t *testing.T) {
	c, imposter := cloudtest.Start(t), cloudtest.Start(t)
	dir := filepath.Join(t.TempDir(), "identity")
	_, err := identity.Join(context.Background(), dir, imposter.URL, c.MintToken(t))
	if err == nil || enroll.Temporary(err) || !strings.Contains(err.Error(), "pin") {
		t.Errorf("error %v", err)
	}
	if len(imposter.Seen()) != 0 {
		t.Error("the imposter got a request")
	}
}

// A join whose answer is lost shows the same key when it is tried again.
func TestJoinKeepsItsKeyOverATry(t *testing.T) {
	authority, err := pki.OpenAuthority(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	cert, err := authority.Issue(pki.Spec{Peer: pki.Peer{Role: pki.RoleGateway, Name: "gw"}, Hosts: pki.LoopbackHosts()})
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var req struct{ CSR string }
		_ = json.NewDecoder(r.Body).Decode(&req)
		leaf, err := authority.SignCSR([]byte(req.CSR), pki.Spec{Peer: pki.Peer{Role: pki.RoleEdge, Name: "d", Tenant: cloudtest.Tenant}})
		if err != nil {
			t.Error(err)
		}
		keys = append(keys, publicKey(t, leaf))
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	s.TLS = pki.ServerConfig((*pki.Static)(&cert), authority.Pool())
	s.TLS.Certificates = []tls.Certificate{cert} // else httptest shows its own
	s.StartTLS()
	t.Cleanup(s.Close)
	token, err := tenants.MintJoinToken(authority.Pin())
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "identity")
	for range 2 {
		if _, err := identity.Join(context.Background(), dir, s.URL, token); !enroll.Temporary(err) {
			t.Fatalf("error %v", err)
		}
	}
	if len(keys) != 2 || keys[0] != keys[1] {
		t.Error("two tries showed two keys")
	}
}

func TestJoinNobodyThereIsTemporary(t *testing.T) {
	c := cloudtest.Start(t)
	token := c.MintToken(t)
	c.Stop()
	if _, err := identity.Join(context.Background(), filepath.Join(t.TempDir(), "i"), c.URL, token); !enroll.Temporary(err) {
		t.Errorf("error %v", err)
	}
	for _, u := range []string{"", "http://x", "https://", "https://u:p@x"} {
		if _, err := identity.Join(context.Background(), filepath.Join(t.TempDir(), "i"), u, token); err == nil || enroll.Temporary(err) {
			t.Errorf("%q: %v", u, err)
		}
	}
}

// A damaged or opened identity is refused with what to do, never used.
func TestLoadRefusesDamage(t *testing.T) {
	c := cloudtest.Start(t)
	for _, tt := range []struct {
		name   string
		damage func(dir string) error
		want   string
	}{
		{"key open to others", func(d string) error { return os.Chmod(filepath.Join(d, "device-key.pem"), 0o644) }, "chmod 600"},
		{"key gone", func(d string) error { return os.Remove(filepath.Join(d, "device-key.pem")) }, "device-key.pem"},
		{"certificate cut", func(d string) error { return os.Truncate(filepath.Join(d, "device.pem"), 40) }, "certificate"},
		{"CA is nonsense", func(d string) error { return os.WriteFile(filepath.Join(d, "ca.pem"), []byte("x"), 0o600) }, "CA"},
		{"unknown member", func(d string) error {
			return os.WriteFile(filepath.Join(d, "identity.json"), []byte(`{"x":1}`), 0o600)
		}, "identity.json"},
		{"another device", func(d string) error { return replace(filepath.Join(d, "identity.json"), cloudtest.Device, "device-2") }, "not for device device-2"},
		{"another tenant", func(d string) error {
			return replace(filepath.Join(d, "identity.json"), cloudtest.Tenant, strings.Replace(cloudtest.Tenant, "01", "02", 1))
		}, "certificate is for"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "identity")
			if _, err := identity.Join(context.Background(), dir, c.URL, c.MintToken(t)); err != nil {
				t.Fatal(err)
			}
			if err := tt.damage(dir); err != nil {
				t.Fatal(err)
			}
			_, err := identity.Load(dir)
			if err == nil || errors.Is(err, identity.ErrNone) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}
