package install

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/internal/cli"
)

// fakeNPM puts an npm on PATH that counts its runs and lays out a package as
// npm does, with a body per file. A body "fail" makes it fail.
func fakeNPM(t *testing.T, files map[string]string) (runs func() int) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("the fake npm lays out the Linux package")
	}
	bin, log := t.TempDir(), filepath.Join(t.TempDir(), "runs")
	script := "#!/bin/sh\necho run >> " + log + "\nset -e\n" +
		"grep -q integrity package-lock.json\n! grep -q resolved package-lock.json\n" +
		"p=$(sed -n 's/.*@node-llama-cpp\\/\\([a-z0-9-]*\\)\".*/\\1/p' package.json)\n" +
		"d=node_modules/@node-llama-cpp/$p/bins/$p\nmkdir -p $d\n"
	for name, body := range files {
		if body == "fail" {
			script += "echo half > $d/" + name + "\necho 'npm error network is down' >&2\nexit 1\n"
			continue
		}
		script += "printf '" + body + "' > $d/" + name + "\n"
	}
	if err := os.WriteFile(filepath.Join(bin, "npm"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	return func() int {
		data, err := os.ReadFile(log)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return strings.Count(string(data), "run")
	}
}

var goodFiles = map[string]string{
	"libllama.v0.5.0.so": "llama", "libggml.cuda.v0.5.0.so": "ggml", "libggml-base.so": "base",
	"llama-addon.node": "for node only", "_nlcBuildMetadata.json": "{}",
}

func install(t *testing.T, dir string) error {
	t.Helper()
	_, err := Install(context.Background(), Options{Dir: dir})
	return err
}

func TestInstallOnce(t *testing.T) {
	runs := fakeNPM(t, goodFiles)
	dir := filepath.Join(t.TempDir(), "deep", "lib")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := install(t, dir); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := runs(); n != 1 {
		t.Errorf("npm ran %d times for parallel callers, want once", n)
	}
	for name, want := range map[string]string{"libllama.so": "llama", "libggml.so": "ggml", "libggml-base.so": "base"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); string(got) != want {
			t.Errorf("%s holds %q, %v", name, got, err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "llama-addon.node")); err == nil {
		t.Error("a file for Node only was installed")
	}
	if err := os.Remove(filepath.Join(dir, "libggml-base.so")); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadStamp(dir); !errors.Is(err, ErrNotInstalled) {
		t.Errorf("a missing library: %v", err)
	}
	if err := install(t, dir); err != nil || runs() != 2 {
		t.Errorf("repair: %v after %d runs", err, runs())
	}
}

// TestInstallFails leaves the old libraries and no rest behind.
func TestInstallFails(t *testing.T) {
	fakeNPM(t, goodFiles)
	parent := t.TempDir()
	dir := filepath.Join(parent, "lib")
	if err := install(t, dir); err != nil {
		t.Fatal(err)
	}
	stamp := filepath.Join(dir, stampName)
	raw, err := os.ReadFile(stamp)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(stamp, []byte(strings.Replace(string(raw), "3.", "2.", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(parent, ".lib.tmp-killed"), 0o755); err != nil {
		t.Fatal(err)
	}
	fakeNPM(t, map[string]string{"libllama.v0.5.0.so": "fail"})
	if err := install(t, dir); err == nil || !strings.Contains(err.Error(), "network is down") || strings.Contains(err.Error(), "\n") {
		t.Errorf("npm failed: %v", err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "libllama.so")); string(got) != "llama" {
		t.Errorf("the old library holds %q, %v", got, err)
	}
	if left, err := filepath.Glob(filepath.Join(parent, ".lib.tmp-*")); len(left) > 0 || err != nil {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestInstallRefuses(t *testing.T) {
	fakeNPM(t, goodFiles)
	foreign := t.TempDir()
	if err := os.WriteFile(filepath.Join(foreign, "thesis.txt"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := install(t, foreign); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("a folder with other files: %v", err)
	}
	if _, err := Install(context.Background(), Options{Dir: t.TempDir(), Variant: "tpu"}); err == nil || !strings.Contains(err.Error(), "cpu") {
		t.Errorf("unknown variant: %v", err)
	}
	t.Setenv("PATH", t.TempDir())
	if err := install(t, filepath.Join(t.TempDir(), "lib")); !errors.Is(err, ErrNPM) {
		t.Errorf("no npm: %v", err)
	}
}

func TestInstallWaitsForLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := lock(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if _, err := lock(ctx, path); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("second lock: %v", err)
	}
	unlock()
	again, err := lock(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	again()
}

// TestLockfile checks the pins of every platform and variant.
func TestLockfile(t *testing.T) {
	if strings.Contains(string(lockJSON), "resolved") || strings.Contains(string(lockJSON), "http") {
		t.Error("the lockfile names a registry")
	}
	raw, err := os.ReadFile("package.json")
	if err != nil {
		t.Fatal(err)
	}
	var manifest struct {
		OptionalDependencies map[string]string `json:"optionalDependencies"`
	}
	if err := json.Unmarshal(raw, &manifest); err != nil {
		t.Fatal(err)
	}
	n := 0
	for platform, p := range platforms {
		goos, goarch, _ := strings.Cut(platform, "/")
		for _, variant := range p.variants {
			pin, err := choose(goos, goarch, variant)
			if err != nil {
				t.Errorf("%s %s: %v", platform, variant, err)
				continue
			}
			n++
			if !strings.HasPrefix(pin.Integrity, "sha512-") || manifest.OptionalDependencies[scope+pin.name] != pin.Version {
				t.Errorf("%s: %+v, package.json has %q", pin.name, pin.lockEntry, manifest.OptionalDependencies[scope+pin.name])
			}
		}
	}
	if n != len(manifest.OptionalDependencies) {
		t.Errorf("%d packages in use, %d pinned", n, len(manifest.OptionalDependencies))
	}
	if _, err := choose("plan9", "mips", ""); err == nil || !strings.Contains(err.Error(), "--lib") {
		t.Errorf("unknown platform: %v", err)
	}
}

func TestVersionedNames(t *testing.T) {
	for file, want := range map[string]string{
		"libllama.v0.5.0.so": "libllama.so", "libggml.cuda.v0.5.0.so": "libggml.so", "libllama.metal.v0.4.0.dylib": "libllama.dylib",
		"llama.v0.4.0.dll": "llama.dll", "libggml-base.so": "", "libllama-common.so": "", "libggml-cpu-zen4.so": "",
	} {
		got := ""
		if m := versioned.FindStringSubmatch(file); m != nil {
			got = m[1] + m[2]
		}
		if got != want {
			t.Errorf("%s gets the name %q, want %q", file, got, want)
		}
	}
}

func TestCommands(t *testing.T) {
	fakeNPM(t, goodFiles)
	dir := filepath.Join(t.TempDir(), "lib")
	var out, diag strings.Builder
	env := cli.Env{Stdout: &out, Stderr: &diag, Getenv: func(key string) string { return map[string]string{"WEIR_LIB": dir}[key] }}
	call := func(args ...string) error {
		for _, c := range Command().Sub {
			if c.Name == args[0] {
				return c.Run(context.Background(), env, args[1:])
			}
		}
		return errors.New("no such command")
	}
	if err := call("path"); !errors.Is(err, engine.ErrLibrary) {
		t.Errorf("path before install: %v", err)
	}
	if err := call("install"); err != nil || !strings.Contains(out.String(), dir) || !strings.Contains(diag.String(), "fetching") {
		t.Errorf("install: %v, %q, %q", err, out.String(), diag.String())
	}
	out.Reset()
	if err := call("path"); err != nil || strings.TrimSpace(out.String()) != dir {
		t.Errorf("path: %v, %q", err, out.String())
	}
	if err := call("check"); !errors.Is(err, engine.ErrLibrary) { // the fake library is text
		t.Errorf("check: %v", err)
	}
	for _, name := range []string{"install", "path", "check"} {
		if err := call(name, "extra"); !errors.As(err, new(cli.UsageError)) {
			t.Errorf("%s extra: %v", name, err)
		}
	}
}
