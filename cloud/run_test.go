package cloud

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/cloud/control"
	"github.com/weirhq/weir/internal/cli"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/testpg"
	"github.com/weirhq/weir/internal/testproc"
)

// admin calls the admin API with the token of the secrets directory.
func admin(t *testing.T, rt http.RoundTripper, url, secrets, path, body string) map[string]any {
	t.Helper()
	token, err := os.ReadFile(filepath.Join(secrets, control.AdminTokenFile))
	if err != nil {
		t.Fatal(err)
	}
	resp, text := send(t, rt, url+"/admin/v1/"+path, strings.TrimSpace(string(token)), body)
	if resp.StatusCode/100 != 2 {
		t.Fatalf("%s: %d %s", path, resp.StatusCode, text)
	}
	var m map[string]any
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestRun is the role against a real PostgreSQL: started before the database
// is there, used, kept going through an outage, settled after it.
func TestRun(t *testing.T) {
	pg := testpg.NewServer(t)
	url := pg.URL()
	pg.Stop()
	engine := httptest.NewServer(engineFake{})
	defer engine.Close()
	conf := testConfig(engine.URL)
	conf.Listen, conf.TLSListen, conf.OpsListen = testproc.FreeAddr(t), testproc.FreeAddr(t), testproc.FreeAddr(t)
	conf.SecretsDir, conf.DataDir, conf.LogLevel = t.TempDir(), t.TempDir(), "info"
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	var log bytes.Buffer // to be read when Run has ended
	go func() { done <- Run(ctx, conf, url, &log) }()
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	api, ops := "http://"+conf.Listen, "http://"+conf.OpsListen
	status := func() string {
		resp, err := (&http.Client{Transport: tr}).Get(ops + "/readyz")
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		var h health
		_ = json.NewDecoder(resp.Body).Decode(&h)
		return h.Status
	}
	await(t, "starting without a database", func() bool { return status() == "starting" })
	pg.Start(t)
	await(t, "ready", func() bool { return status() == "ready" })

	tenantID := admin(t, tr, api, conf.SecretsDir, "tenants", `{"name":"acme"}`)["id"].(string)
	key := admin(t, tr, api, conf.SecretsDir, "keys", fmt.Sprintf(`{"tenant_id":%q,"name":"app"}`, tenantID))["key"].(string)
	ask := func() int {
		resp, _ := send(t, tr, api+"/v1/chat/completions", key, hello)
		return resp.StatusCode
	}
	await(t, "the new key works", func() bool { return ask() == 200 })
	again := func() string {
		resp, text := send(t, tr, api+"/v1/chat/completions", key, hellos, contract.HeaderIdempotency, "once")
		return fmt.Sprint(resp.StatusCode, resp.Header.Get(contract.HeaderRequestID), text)
	}
	if first := again(); !strings.HasPrefix(first, "200") || again() != first {
		t.Errorf("two requests with one Idempotency-Key: %s", first)
	}
	pg.Stop()
	await(t, "degraded", func() bool { return status() == "degraded" })
	if got := ask(); got != 200 {
		t.Errorf("a known key got %d without the database", got)
	}
	pg.Start(t)
	await(t, "the ledger rows", func() bool {
		resp, text := send(t, tr, api+"/v1/usage", key, "")
		var report struct {
			Totals struct{ Attempts int }
		}
		return resp.StatusCode == 200 && json.Unmarshal([]byte(text), &report) == nil && report.Totals.Attempts == 3
	})
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("Run: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("Run does not end")
	}
	if strings.Contains(log.String(), "does not exist") {
		t.Errorf("the new database was used before its tables were there: %s", log.String())
	}
}

func TestCommandRefuses(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	secrets := t.TempDir()
	file := func(text string) string {
		name := filepath.Join(t.TempDir(), "c.yaml")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	tests := []struct {
		name string
		args []string
		env  map[string]string
		code int
		want string
	}{
		{name: "no secrets directory", code: 1, want: "secrets_dir"},
		{name: "no database", args: []string{"--secrets-dir", secrets, "--data-dir", secrets}, code: 1, want: "WEIR_DATABASE_URL"},
		{name: "password on the command line", args: []string{"--secrets-dir", secrets, "--data-dir", secrets, "--database-url", "postgres://u:hunter2@h/db"}, code: 1, want: "without a password"},
		{name: "password as a parameter", args: []string{"--secrets-dir", secrets, "--data-dir", secrets, "--database-url", "postgres://u@h/db?password=hunter2"}, code: 1, want: "without a password"},
		{name: "database URL is none", args: []string{"--secrets-dir", secrets, "--data-dir", secrets}, env: map[string]string{"WEIR_DATABASE_URL": "::hunter2::"}, code: 1, want: "cannot be parsed"},
		{name: "listen off loopback", args: []string{"--secrets-dir", secrets, "--listen", "0.0.0.0:1"}, code: 1, want: "not loopback"},
		{name: "port taken", args: []string{"--secrets-dir", secrets, "--data-dir", secrets, "--listen", l.Addr().String()}, env: map[string]string{"WEIR_DATABASE_URL": "postgres://u@127.0.0.1:1/db"}, code: 1, want: "taken"},
		{name: "wrong duration", args: []string{"--drain", "soon"}, code: 2, want: "drain"},
		{name: "unknown flag", args: []string{"--speed", "9"}, code: 2, want: "speed"},
		{name: "argument", args: []string{"now"}, code: 2, want: "now"},
		{name: "unknown key", args: []string{"--config", file("cloud: {speed: 9}")}, code: 1, want: "speed"},
		{name: "model without a pool", args: []string{"--config", file("cloud: {secrets_dir: x, models: {a: {pool: b}}}")}, code: 1, want: "models.a"},
		{name: "instance without url", args: []string{"--config", file("cloud: {secrets_dir: x, instances: [{name: a, model: b}]}")}, code: 1, want: "instances[0]"},
		{name: "log level", args: []string{"--secrets-dir", secrets, "--log-level", "loud"}, env: map[string]string{"WEIR_DATABASE_URL": "postgres://u@127.0.0.1:1/db"}, code: 1, want: "loud"},
		{name: "help", args: []string{"--help"}, code: 0, want: "--tls-listen"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out strings.Builder
			env := cli.Env{Stdout: &out, Stderr: &out, Getenv: func(k string) string { return tt.env[k] }}
			code := cli.Main(t.Context(), env, []cli.Command{Command()}, append([]string{"cloud"}, tt.args...))
			if code != tt.code || !strings.Contains(out.String(), tt.want) {
				t.Errorf("exit %d: %s", code, out.String())
			}
			if strings.Contains(out.String(), "hunter2") {
				t.Error("it shows the password")
			}
			if code != 0 && strings.Count(out.String(), "\n") != 1 {
				t.Errorf("not one line: %q", out.String())
			}
		})
	}
}
