package pki

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/cli"
)

// handshake connects the two ends, sends one byte each way and returns the
// server's view of the client, what the server read, and the client's error.
func handshake(t *testing.T, server, client *tls.Config) (Peer, int, error) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	type result struct {
		peer Peer
		n    int
	}
	done := make(chan result, 1)
	go func() {
		var r result
		defer func() { done <- r }()
		raw, err := ln.Accept()
		if err != nil {
			return
		}
		defer raw.Close()
		_ = raw.SetDeadline(time.Now().Add(time.Minute))
		c := tls.Server(raw, server)
		r.n, _ = c.Read(make([]byte, 1))
		cs := c.ConnectionState()
		r.peer, _ = PeerOf(&cs)
		_, _ = c.Write([]byte{1})
	}()
	err = func() error {
		c, err := tls.DialWithDialer(&net.Dialer{Timeout: time.Minute}, "tcp", ln.Addr().String(), client)
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		if _, err := c.Write([]byte{1}); err != nil {
			return err
		}
		_, err = io.ReadFull(c, make([]byte, 1)) // TLS 1.3 reports a refused client here
		return err
	}()
	r := <-done
	return r.peer, r.n, err
}

func holder(t *testing.T, a *Authority, s Spec) *Static {
	t.Helper()
	chain, key, err := a.IssuePEM(s)
	if err != nil {
		t.Fatal(err)
	}
	h, err := ParseStatic(chain, key)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestRolesOnTheWire(t *testing.T) {
	a, stranger := authority(t), authority(t)
	gw := Spec{Peer: Peer{Role: RoleGateway, Name: "g"}, Hosts: LoopbackHosts()}
	work := holder(t, a, worker("w"))
	public := ServerConfig(holder(t, a, gw), a.Pool())
	inner := MutualConfig(work, a.Pool(), RoleGateway)
	kv := MutualConfig(work, a.Pool(), RoleWorker)
	dev := holder(t, a, Spec{Peer: device})
	for _, tc := range []struct {
		name           string
		server, client *tls.Config
		peer           Peer
		ok             bool
	}{
		{"nobody at the public port", public, ClientConfig(nil, a.Pool()), Peer{}, true},
		{"device at the public port", public, ClientConfig(dev, a.Pool(), RoleGateway), device, true},
		{"stranger's device at the public port", public, ClientConfig(holder(t, stranger, Spec{Peer: device}), a.Pool()), Peer{}, false},
		{"gateway at a worker", inner, ClientConfig(holder(t, a, gw), a.Pool(), RoleWorker), gw.Peer, true},
		{"device at a worker", inner, ClientConfig(dev, a.Pool()), Peer{}, false},
		{"worker at a worker's API", inner, ClientConfig(work, a.Pool()), Peer{}, false},
		{"nobody at a worker", inner, ClientConfig(nil, a.Pool()), Peer{}, false},
		{"worker at a worker's KV", kv, RoleClientConfig(work, a.Pool(), RoleWorker), worker("w").Peer, true},
		{"gateway at a worker's KV", kv, RoleClientConfig(holder(t, a, gw), a.Pool(), RoleWorker), Peer{}, false},
		{"client of another authority", public, ClientConfig(nil, stranger.Pool()), Peer{}, false},
		{"server has the wrong role", public, ClientConfig(nil, a.Pool(), RoleWorker), Peer{}, false},
		{"KV peer is a gateway", public, RoleClientConfig(work, a.Pool(), RoleWorker), Peer{}, false},
		{"KV peer of another authority", kv, RoleClientConfig(work, stranger.Pool(), RoleWorker), Peer{}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			peer, n, err := handshake(t, tc.server, tc.client)
			if (err == nil) != tc.ok || (n == 1) != tc.ok {
				t.Fatalf("err %v, server read %d bytes, want ok=%v", err, n, tc.ok)
			}
			if tc.ok && peer != tc.peer {
				t.Errorf("peer %+v, want %+v", peer, tc.peer)
			}
		})
	}
}

func TestDeviceIsNoServer(t *testing.T) {
	a := authority(t)
	impostor := ServerConfig(holder(t, a, Spec{Peer: device}), a.Pool())
	for name, c := range map[string]*tls.Config{
		"join":   JoinConfig(a.Pin(), "127.0.0.1"),
		"role":   RoleClientConfig(nil, a.Pool(), RoleEdge),
		"client": ClientConfig(nil, a.Pool()),
	} {
		if _, n, err := handshake(t, impostor, c); err == nil || n != 0 {
			t.Errorf("%s: a device's certificate served: %v, %d bytes", name, err, n)
		}
	}
}

func TestJoinSendsNothingToAnImpostor(t *testing.T) {
	a, other := authority(t), authority(t)
	gw := Spec{Peer: Peer{Role: RoleGateway, Name: "g"}, Hosts: []string{"127.0.0.1"}}
	elsewhere := Spec{Peer: gw.Peer, Hosts: []string{"other.example"}}
	// The impostor appends the real authority's public certificate to its own.
	forged := holder(t, other, gw)
	forged.Certificate = append(forged.Certificate, a.cert.Raw)
	for _, tc := range []struct {
		name   string
		server *Static
		host   string
		ok     bool
	}{
		{"the cloud", holder(t, a, gw), "127.0.0.1", true},
		{"another authority", holder(t, other, gw), "127.0.0.1", false},
		{"forged chain", forged, "127.0.0.1", false},
		{"another name", holder(t, a, elsewhere), "127.0.0.1", false},
		{"no name", holder(t, a, gw), "", false},
		{"a worker", holder(t, a, worker("w")), "127.0.0.1", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, n, err := handshake(t, ServerConfig(tc.server, a.Pool()), JoinConfig(a.Pin(), tc.host))
			if (err == nil) != tc.ok || (n == 1) != tc.ok {
				t.Fatalf("err %v, server read %d bytes", err, n)
			}
		})
	}
}

func TestExpiredDeviceIsRefused(t *testing.T) {
	a := authority(t)
	b := *a
	b.now = func() time.Time { return time.Now().Add(-48 * time.Hour) }
	old := holder(t, &b, Spec{Peer: device, Life: time.Hour})
	server := ServerConfig(holder(t, a, worker("w")), a.Pool())
	if _, n, err := handshake(t, server, ClientConfig(old, a.Pool())); err == nil || n != 0 {
		t.Fatalf("accepted: %v", err)
	}
}

func TestCommandIssuesUsableFiles(t *testing.T) {
	secrets, out := t.TempDir(), filepath.Join(t.TempDir(), "w1")
	run := func(args ...string) (int, string) {
		var o, e bytes.Buffer
		code := cli.Main(context.Background(), cli.Env{Stdout: &o, Stderr: &e}, []cli.Command{PKICommand()}, append([]string{"pki"}, args...))
		return code, o.String() + e.String()
	}
	if code, text := run("init", "--secrets-dir", secrets); code != 0 || !strings.Contains(text, "pin ") {
		t.Fatalf("init: %d %s", code, text)
	}
	if code, text := run("issue", "--secrets-dir", secrets, "--role", "worker", "--name", "w1", "--out-dir", out); code != 0 {
		t.Fatalf("issue: %d %s", code, text)
	}
	h, err := LoadStatic(filepath.Join(out, CertFile), filepath.Join(out, KeyFile))
	if err != nil {
		t.Fatal(err)
	}
	pool, err := LoadPool(filepath.Join(out, CAFile))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := handshake(t, MutualConfig(h, pool, RoleWorker), ClientConfig(h, pool, RoleWorker)); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"init"}, {"issue", "--secrets-dir", secrets},
		{"issue", "--secrets-dir", secrets, "--role", "edge", "--name", "x", "--out-dir", out},
		{"issue", "--secrets-dir", secrets, "--role", "worker", "--name", "x", "--out-dir", out, "--days", "0"},
	} {
		if code, text := run(args...); code != cli.ExitUsage {
			t.Errorf("%v: %d %s", args, code, text)
		}
	}
	if code, _ := run("issue", "--secrets-dir", secrets, "--role", "worker", "--name", "a/b", "--out-dir", out); code != cli.ExitError {
		t.Errorf("bad name: %d", code)
	}
}

func TestLoadErrorsNameTheFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "x.pem")
	if _, err := LoadPool(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	write(t, dir, "x.pem", []byte("secret text"))
	if _, err := LoadPool(file); err == nil || !strings.Contains(err.Error(), "x.pem") {
		t.Errorf("got %v", err)
	}
	if _, err := LoadStatic(file, file); err == nil || strings.Contains(err.Error(), "secret text") {
		t.Errorf("got %v", err)
	}
}

func FuzzParsePool(f *testing.F) {
	a, err := OpenAuthority(f.TempDir())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(a.CertPEM())
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, err := ParsePool(b); err == nil && p.Equal(x509.NewCertPool()) {
			t.Fatal("an empty pool and no error")
		}
	})
}
