package evaluate

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/weirhq/weir/internal/cli"
)

// Rows that cannot be written are refused before anything is asked.
func TestRowsPathIsTriedFirst(t *testing.T) {
	var asked atomic.Int64
	system := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer system.Close()
	dir := t.TempDir()
	ready := filepath.Join(dir, "ready.json")
	if err := os.WriteFile(ready, []byte(`{"edge_url":"`+system.URL+`","app_key":"k"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	env := cli.Env{Stdout: io.Discard, Stderr: io.Discard, Getenv: func(string) string { return "" }}
	err := Command().Run(t.Context(), env, []string{"--ready-file", ready, "--rows", filepath.Join(dir, "none", "rows.csv")})
	if err == nil || !strings.Contains(err.Error(), "--rows") || asked.Load() != 0 {
		t.Errorf("%v after %d requests", err, asked.Load())
	}
}
