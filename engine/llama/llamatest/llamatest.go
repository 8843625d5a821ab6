// Package llamatest gives tests the llama.cpp library and runners on it.
package llamatest

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/weirhq/weir/engine/install"
	"github.com/weirhq/weir/engine/llama"
)

// Installed returns the library folder: WEIR_LIB, one that is installed, or beside.
// The test is skipped where there is none, and fails where WEIR_LIB names it.
func Installed(t testing.TB, beside string) string {
	t.Helper()
	dir, ok := find(t)
	if ok {
		return dir
	}
	dir, err := llama.FindLibrary(beside, os.Getenv)
	if err != nil {
		t.Skipf("run 'make engine': %v", err)
	}
	return dir
}

func find(t testing.TB) (dir string, ok bool) {
	t.Helper()
	dir, err := llama.FindLibrary("", os.Getenv)
	if err != nil && os.Getenv("WEIR_LIB") != "" {
		t.Fatal(err)
	}
	return dir, err == nil
}

// Library returns the library folder, and installs the library first when it is
// absent. The test is skipped where that fails, e.g. without npm, and fails where
// WEIR_LIB names a folder without it.
func Library(t testing.TB) string {
	t.Helper()
	dir, ok := find(t)
	if ok {
		return dir
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	dir = llama.DefaultLibraryDir(os.Getenv)
	if _, err := install.Install(ctx, install.Options{Dir: dir}); err != nil {
		t.Skipf("llama.cpp is absent and cannot be installed: %v", err)
	}
	return dir
}

// Load loads a model for a test and closes it afterwards. LibDir and CacheDir
// are filled in.
func Load(t testing.TB, o llama.Options) *llama.Runner {
	t.Helper()
	o.LibDir = Library(t)
	if o.CacheDir == "" {
		o.CacheDir = t.TempDir()
	}
	r, err := llama.Load(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}
