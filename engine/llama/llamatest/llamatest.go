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

// Library returns the library folder, and installs the library first when it is
// absent. The test is skipped where that fails, e.g. without npm.
func Library(t testing.TB) string {
	t.Helper()
	dir, err := llama.FindLibrary("", os.Getenv)
	if err == nil {
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
