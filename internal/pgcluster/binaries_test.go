package pgcluster

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fake makes a folder of scripts that pose as a server of one version.
func fake(t *testing.T, scripts map[string]string) string {
	t.Helper()
	dir := dataDir(t)
	for name, body := range scripts {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+body+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func version(n string) string { return `echo "x (PostgreSQL) ` + n + `.1"` }

func TestWrapperOnPathIsPassedOver(t *testing.T) {
	real, err := FindBinaries(t.Context(), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	// Looks like postgres, but its folder holds no server.
	t.Setenv("PATH", fake(t, map[string]string{"postgres": version("15")})+":/usr/bin:/bin")
	got, err := FindBinaries(t.Context(), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	if got.Major < minMajor || strings.HasPrefix(got.Dir, "/tmp") {
		t.Errorf("got %+v, first %+v", got, real)
	}
}

func TestInspectRefuses(t *testing.T) {
	for name, scripts := range map[string]map[string]string{
		"mixed versions": {"postgres": version("15"), "initdb": version("16"), "pg_ctl": version("15")},
		"not postgres":   {"postgres": "echo hello", "initdb": version("15"), "pg_ctl": version("15")},
		"broken":         {"postgres": "exit 1", "initdb": version("15"), "pg_ctl": version("15")},
		"client only":    {"pg_ctl": version("15")},
	} {
		if b, err := inspect(t.Context(), fake(t, scripts)); err == nil {
			t.Errorf("%s: accepted as %+v", name, b)
		}
	}
}

func TestNotFoundSaysWhatToInstall(t *testing.T) {
	_, err := FindBinaries(t.Context(), "", 42)
	if !errors.Is(err, ErrNoServer) || !strings.Contains(err.Error(), "42") || !strings.Contains(err.Error(), "install postgresql") {
		t.Errorf("got %v", err)
	}
}

func TestFullDiskSurfaces(t *testing.T) {
	dir := fake(t, map[string]string{
		"postgres": version("15"), "pg_ctl": version("15"),
		"initdb": `case "$1" in --version) ` + version("15") + `; exit;; esac
echo "creating configuration files ... initdb: error: could not write file \"x\": No space left on device" >&2
echo "initdb: removing contents of data directory \"x\"" >&2
exit 1`,
	})
	o := options(dataDir(t))
	o.BinDir = dir
	_, err := Open(t.Context(), o)
	if err == nil || !strings.Contains(err.Error(), "No space left on device") || strings.Contains(err.Error(), "\n") {
		t.Errorf("got %v", err)
	}
}

func TestTailKeepsTheReason(t *testing.T) {
	var tl tail
	if tl.reason() != "" {
		t.Error("an empty log has a reason")
	}
	for range 1000 {
		_, _ = tl.Write([]byte("LOG:  something ordinary happened\n"))
	}
	_, _ = tl.Write([]byte("2026 FATAL:  could not write lock file: No space left on device\nLOG:  database system is shut down\n"))
	if got := tl.reason(); got != ": FATAL:  could not write lock file: No space left on device" {
		t.Errorf("got %q", got)
	}
	if len(tl.last) > tailBytes {
		t.Error("the tail grows")
	}
	_, _ = tl.Write([]byte("PANIC:  cannot abort transaction 1, it was already committed\n"))
	if got := tl.reason(); !strings.Contains(got, "No space left on device") {
		t.Errorf("got %q, a consequence of the full disk", got)
	}
}
