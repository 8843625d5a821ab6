package pki

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func authority(t *testing.T) *Authority {
	t.Helper()
	a, err := OpenAuthority(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func worker(name string) Spec {
	return Spec{Peer: Peer{Role: RoleWorker, Name: name}, Hosts: LoopbackHosts()}
}

func TestAuthorityIsMadeOnceAndKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "secrets")
	var wg sync.WaitGroup
	pins := make([]string, 8)
	for i := range pins {
		wg.Go(func() {
			a, err := OpenAuthority(dir)
			if err != nil {
				t.Error(err)
				return
			}
			pins[i] = a.Pin().String()
		})
	}
	wg.Wait()
	for _, p := range pins {
		if p != pins[0] || p == "" {
			t.Fatalf("two authorities: %q", pins)
		}
	}
	for _, f := range []string{CAFile, CAKeyFile} {
		st, err := os.Stat(filepath.Join(dir, f))
		if err != nil {
			t.Fatal(err)
		}
		if st.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %o", f, st.Mode().Perm())
		}
	}
}

func TestAuthorityRepairsHalfFinishedStart(t *testing.T) {
	dir := t.TempDir()
	a, err := OpenAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, CAFile)); err != nil {
		t.Fatal(err)
	}
	b, err := OpenAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	if a.Pin() != b.Pin() {
		t.Error("the key was thrown away")
	}
}

func TestAuthorityRefuses(t *testing.T) {
	other := authority(t)
	leaf, _, err := other.IssuePEM(worker("w"))
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		harm func(t *testing.T, dir string)
		want string
	}{
		"key lost":            {func(t *testing.T, d string) { remove(t, d, CAKeyFile) }, "restore it"},
		"other's certificate": {func(t *testing.T, d string) { write(t, d, CAFile, other.CertPEM()) }, "does not belong"},
		"no authority":        {func(t *testing.T, d string) { write(t, d, CAFile, leaf) }, "not the certificate of an authority"},
		"no PEM":              {func(t *testing.T, d string) { write(t, d, CAFile, []byte("x")) }, "not a PEM file"},
		"key is no key":       {func(t *testing.T, d string) { write(t, d, CAKeyFile, []byte("hunter2")) }, "no PEM block"},
		"key open to all":     {func(t *testing.T, d string) { chmod(t, d, CAKeyFile, 0o644) }, "chmod 600"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if _, err := OpenAuthority(dir); err != nil {
				t.Fatal(err)
			}
			tc.harm(t, dir)
			_, err := OpenAuthority(dir)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("got %v, want %q", err, tc.want)
			}
			if strings.Contains(err.Error(), "hunter2") {
				t.Error("the error repeats the key")
			}
		})
	}
}

func TestExpiredAuthority(t *testing.T) {
	dir := t.TempDir()
	a, err := OpenAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	a.now = func() time.Time { return time.Now().Add(caLife + time.Hour) }
	if err := a.open(dir); err == nil || !strings.Contains(err.Error(), "expired") {
		t.Fatalf("got %v", err)
	}
}

func TestSnapshotKeyIsKept(t *testing.T) {
	dir := t.TempDir()
	a, err := OpenSnapshotKey(dir)
	if err != nil {
		t.Fatal(err)
	}
	b, err := OpenSnapshotKey(dir)
	if err != nil {
		t.Fatal(err)
	}
	if !a.Equal(b) {
		t.Error("the second start made another key")
	}
	write(t, dir, snapshotKeyFile, []byte("nonsense"))
	if _, err := OpenSnapshotKey(dir); err == nil || strings.Contains(err.Error(), "nonsense") {
		t.Errorf("got %v", err)
	}
}

func TestSourceRenews(t *testing.T) {
	a := authority(t)
	now := time.Now()
	a.now = func() time.Time { return now }
	s, err := a.Source(Spec{Peer: Peer{Role: RoleGateway, Name: "g"}, Life: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	first, _ := s.GetCertificate(nil)
	again, _ := s.GetClientCertificate(nil)
	if first != again {
		t.Error("a fresh certificate was replaced")
	}
	now = now.Add(41 * time.Minute)
	next, _ := s.GetCertificate(nil)
	if next == first {
		t.Error("the certificate was not renewed at two thirds of its life")
	}
}

func TestLeafEndsWithItsAuthority(t *testing.T) {
	a := authority(t)
	c, err := a.Issue(Spec{Peer: Peer{Role: RoleWorker, Name: "w"}, Life: 2 * caLife})
	if err != nil {
		t.Fatal(err)
	}
	if c.Leaf.NotAfter.After(a.cert.NotAfter) {
		t.Error("the leaf outlives its authority")
	}
	if !bytes.Equal(c.Certificate[1], a.cert.Raw) {
		t.Error("the chain lacks the authority")
	}
}

func remove(t *testing.T, dir, name string) {
	t.Helper()
	if err := os.Remove(filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, dir, name string, b []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func chmod(t *testing.T, dir, name string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(filepath.Join(dir, name), mode); err != nil {
		t.Fatal(err)
	}
}

func leafOf(t *testing.T, b []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(b)
	if block == nil {
		t.Fatal("no PEM")
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
