package install

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

//go:embed package-lock.json
var lockJSON []byte

// scope is the npm scope of the prebuilt libraries (node-llama-cpp, MIT).
const scope = "@node-llama-cpp/"

// lockfile is the part of an npm lockfile (version 3) that the installer reads.
type lockfile struct {
	Packages map[string]json.RawMessage `json:"packages"`
}

type lockEntry struct {
	Version   string `json:"version"`
	Integrity string `json:"integrity"`
}

// pkg is one pinned package of libraries.
type pkg struct {
	name string // "linux-x64-cuda"
	lockEntry
	raw json.RawMessage // the lockfile's entry, as it stands there
}

// platforms maps GOOS/GOARCH to npm's names, with the default variant first.
var platforms = map[string]struct {
	npm      string
	variants []string
}{
	"linux/amd64":   {"linux-x64", []string{"cpu", "cuda", "vulkan"}},
	"linux/arm64":   {"linux-arm64", []string{"cpu"}},
	"darwin/arm64":  {"mac-arm64", []string{"metal"}},
	"darwin/amd64":  {"mac-x64", []string{"cpu"}},
	"windows/amd64": {"win-x64", []string{"cpu", "cuda", "vulkan"}},
	"windows/arm64": {"win-arm64", []string{"cpu"}},
}

// choose returns the package for a platform and a variant; an empty variant
// means the platform's default.
func choose(goos, goarch, variant string) (pkg, error) {
	p, ok := platforms[goos+"/"+goarch]
	if !ok {
		return pkg{}, fmt.Errorf("no prebuilt llama.cpp for %s/%s: build it and point --lib or WEIR_LIB at it; there are %s",
			goos, goarch, strings.Join(slices.Sorted(maps.Keys(platforms)), ", "))
	}
	if variant == "" {
		variant = p.variants[0]
	}
	if !slices.Contains(p.variants, variant) {
		return pkg{}, fmt.Errorf("no variant %q for %s/%s: there are %s", variant, goos, goarch, strings.Join(p.variants, ", "))
	}
	name := p.npm
	if variant != "cpu" {
		name += "-" + variant
	}
	return pinned(name)
}

// pinned reads a package's entry from the lockfile.
func pinned(name string) (pkg, error) {
	var lock lockfile
	if err := json.Unmarshal(lockJSON, &lock); err != nil {
		return pkg{}, fmt.Errorf("embedded lockfile: %w", err)
	}
	p := pkg{name: name, raw: lock.Packages["node_modules/"+scope+name]}
	if p.raw == nil {
		return pkg{}, fmt.Errorf("embedded lockfile has no package %s", name)
	}
	if err := json.Unmarshal(p.raw, &p.lockEntry); err != nil {
		return pkg{}, fmt.Errorf("embedded lockfile: package %s: %w", name, err)
	}
	return p, nil
}

// manifests returns a package.json and a lockfile that name this package only,
// so that npm fetches nothing else.
func (p pkg) manifests() (manifest, lock []byte, err error) {
	root := map[string]any{"name": "weir-engine", "dependencies": map[string]string{scope + p.name: p.Version}}
	if manifest, err = json.Marshal(root); err != nil {
		return nil, nil, err
	}
	lock, err = json.Marshal(map[string]any{
		"name": "weir-engine", "lockfileVersion": 3, "requires": true,
		"packages": map[string]any{"": root, "node_modules/" + scope + p.name: p.raw},
	})
	return manifest, lock, err
}
