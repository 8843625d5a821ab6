package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/weirhq/weir"

// pure lists the packages that decide and do nothing else.
var pure = []string{
	"cloud/route", "cloud/roles", "engine/batch", "engine/sample", "experts/gate", "experts/plan",
	"cascade", "cascade/control", "cascade/learn", "cascade/measure", "cascade/policy", "cascade/prerouter",
	"cascade/stream", "cascade/tiers", "cascade/validate", "cascade/verifier", "tenants/quota", "tenants/fair", "tenants/price",
	"internal/jsonscan",
}

// pureMayImport lists our packages whose types pure packages may use: those of
// each other and those that hold nothing but types.
var pureMayImport = append([]string{"engine", "tenants", "experts/load"}, pure...)

var pureBanned = []string{"net", "os", "database/sql", "io/ioutil", "syscall"}

type pkg struct {
	ImportPath  string
	Dir         string
	Doc         string
	Imports     []string
	GoFiles     []string
	CgoFiles    []string
	TestGoFiles []string
}

// rel is the path below the module, "" for the root.
func (p pkg) rel() string { return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/") }

func packages(t *testing.T) []pkg {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,Dir,Doc,Imports,GoFiles,CgoFiles,TestGoFiles", "./...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []pkg
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

func top(rel string) string { return strings.SplitN(rel, "/", 2)[0] }

// breach returns why package from must not import package to (both below the
// module), or "".
func breach(from, to string) string {
	a, b := top(from), top(to)
	switch {
	case slices.Contains(pure, from) && !slices.Contains(pureMayImport, to):
		return "a pure package imports only types of other pure packages"
	case from == "": // main wires everything
	case b == "":
		return "nothing imports main"
	case (b == "edge" || b == "cloud") && a != b:
		return "edge and cloud are imported by main alone: they meet on the wire"
	case a == "experts" && b == "engine":
		return "experts never imports engine"
	case a == "engine" && b == "experts" && !slices.Contains([]string{"experts/gate", "experts/load", "experts/plan", "experts/rebalance"}, to):
		return "engine may import experts/{gate,load,plan,rebalance} only"
	case a == "internal" && (b == "edge" || b == "cloud"):
		return "internal imports neither edge nor cloud"
	}
	return ""
}

func TestImportsPointOneWay(t *testing.T) {
	for _, p := range packages(t) {
		for _, imp := range p.Imports {
			if to, ours := strings.CutPrefix(imp, module+"/"); ours {
				if why := breach(p.rel(), to); why != "" {
					t.Errorf("%s imports %s: %s", p.rel(), to, why)
				}
			}
			if slices.Contains(pure, p.rel()) && banned(imp) {
				t.Errorf("pure package %s imports %s", p.rel(), imp)
			}
		}
	}
}

func banned(imp string) bool {
	return slices.ContainsFunc(pureBanned, func(b string) bool { return imp == b || strings.HasPrefix(imp, b+"/") })
}

func TestBreachFindsWrongImports(t *testing.T) {
	for _, c := range [][2]string{
		{"edge", "cloud/pool"}, {"cloud", "edge"}, {"cascade", "internal/sse"}, {"experts/plan", "engine"},
		{"engine/llama", "experts/format"}, {"tenants/store", "cloud"}, {"internal/up", "edge"}, {"experts/rebalance", "engine"},
	} {
		if breach(c[0], c[1]) == "" {
			t.Errorf("%s importing %s passed", c[0], c[1])
		}
	}
}

func TestEveryPackageHasADocComment(t *testing.T) {
	for _, p := range packages(t) {
		if p.Doc == "" && len(p.GoFiles)+len(p.CgoFiles) > 0 {
			t.Errorf("package %s has no doc comment", p.ImportPath)
		}
	}
}

func TestPurePackagesCallNoClockAndNoChance(t *testing.T) {
	for _, p := range packages(t) {
		if !slices.Contains(pure, p.rel()) {
			continue
		}
		for _, name := range p.GoFiles {
			for _, fault := range impure(t, filepath.Join(p.Dir, name), nil) {
				t.Errorf("%s: %s", p.rel(), fault)
			}
		}
	}
}

func TestImpureFindsClocks(t *testing.T) {
	src := `package x
import ("math/rand/v2"; "time")
var a = time.Now()
var b = rand.IntN(3)
var c = rand.New(rand.NewPCG(1, 2))
var d = time.Second`
	if got := impure(t, "x.go", src); len(got) != 2 {
		t.Errorf("found %v, want time.Now and rand.IntN", got)
	}
}

// impure lists the uses of clocks and global randomness in a file.
func impure(t *testing.T, path string, src any) (faults []string) {
	t.Helper()
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, path, src, 0)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{} // local name of the import -> path
	for _, imp := range f.Imports {
		p, _ := strconv.Unquote(imp.Path.Value)
		name := filepath.Base(p)
		if p == "math/rand/v2" {
			name = "rand"
		}
		if imp.Name != nil {
			name = imp.Name.Name
		}
		names[name] = p
	}
	ast.Inspect(f, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		x, ok := sel.X.(*ast.Ident)
		if ok && x.Obj == nil && impureCall(names[x.Name], sel.Sel.Name) {
			faults = append(faults, fmt.Sprintf("%s uses %s.%s", fset.Position(sel.Pos()), x.Name, sel.Sel.Name))
		}
		return true
	})
	return faults
}

func impureCall(path, name string) bool {
	switch path {
	case "time":
		return slices.Contains([]string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}, name)
	case "math/rand", "math/rand/v2":
		return !slices.Contains([]string{"Rand", "Source", "New", "NewPCG", "NewChaCha8", "PCG", "ChaCha8", "NewZipf", "Zipf"}, name)
	case "crypto/rand":
		return true
	}
	return false
}

func TestNoPackageIsNamedForNothing(t *testing.T) {
	for _, p := range packages(t) {
		if slices.Contains([]string{"util", "utils", "common", "helpers", "types", "misc", "manager"}, filepath.Base(p.ImportPath)) {
			t.Errorf("package %s is named for nothing it holds", p.ImportPath)
		}
	}
}

func TestFilesStaySmall(t *testing.T) {
	const most = 500 // about 400 is the aim; beyond this a file holds more than one idea
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && slices.Contains([]string{"node_modules", ".git", "testdata"}, d.Name()) {
			return filepath.SkipDir
		}
		if filepath.Ext(path) == ".go" && !strings.HasSuffix(path, "_test.go") {
			if n := countLines(t, path); n > most {
				t.Errorf("%s has %d lines, the most is %d", path, n, most)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func countLines(t *testing.T, path string) int {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(data), "\n")
}
