package heldout_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirhq/weir/engine/models"
	"github.com/weirhq/weir/engine/models/heldout"
)

func TestHeldOutSharesNoPromptWithCalibration(t *testing.T) {
	test, err := heldout.Test()
	if err != nil || len(test) != 1000 {
		t.Fatalf("Test() = %d examples, %v; want 1000", len(test), err)
	}
	cal, err := models.Calibration()
	if err != nil || len(cal) != 3833 {
		t.Fatalf("Calibration() = %d examples, %v; want 3833", len(cal), err)
	}
	seen := map[string]bool{}
	for _, e := range cal {
		seen[e.Prompt] = true
	}
	for _, e := range test {
		if seen[e.Prompt] {
			t.Errorf("prompt %q is in both sets", e.Prompt)
		}
	}
}

// TestOnlyEvaluationImportsHeldOut guards the split: shipped code may import
// this package only from a folder named eval or evaluate, and cascade not even in tests.
func TestOnlyEvaluationImportsHeldOut(t *testing.T) {
	root := repoRoot(t)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && path != root || d.Name() == "node_modules") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if imports(t, path) && !mayImport(rel) {
			t.Errorf("%s imports the held-out examples", rel)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func mayImport(rel string) bool {
	if strings.HasPrefix(rel, "cascade/") {
		return false
	}
	return strings.HasSuffix(rel, "_test.go") || strings.HasPrefix(filepath.Base(filepath.Dir(rel)), "eval") ||
		strings.HasPrefix(rel, "engine/models/heldout/")
}

func TestMayImport(t *testing.T) {
	for rel, want := range map[string]bool{
		"internal/evaluate/run.go": true, "engine/llama/accuracy_test.go": true,
		"cascade/calibrate_test.go": false, "cascade/calibrate/fit.go": false, "edge/agent/run.go": false, "main.go": false,
	} {
		if mayImport(rel) != want {
			t.Errorf("mayImport(%q) = %v", rel, !want)
		}
	}
}

func imports(t *testing.T, path string) bool {
	f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
	if err != nil {
		t.Logf("%s is not parsed: %v", path, err)
		return false
	}
	for _, i := range f.Imports {
		if strings.HasSuffix(strings.Trim(i.Path.Value, `"`), "/engine/models/heldout") {
			return true
		}
	}
	return false
}

func repoRoot(t *testing.T) string {
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("no go.mod above the test")
		}
	}
}
