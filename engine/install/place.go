package install

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
)

// stampName is the file in a library folder that says what was put there.
const stampName = "weir-engine.json"

// Stamp describes the content of a library folder made by Install.
type Stamp struct {
	Package   string           `json:"package"`
	Version   string           `json:"version"`
	Integrity string           `json:"integrity"`
	Files     map[string]int64 `json:"files"` // name to bytes; a link has its target's
}

// ErrNotInstalled says that a folder holds no complete installation.
var ErrNotInstalled = errors.New("not installed")

// ReadStamp reads the stamp of dir and checks that every file is there with its
// length. Otherwise the error wraps ErrNotInstalled.
func ReadStamp(dir string) (Stamp, error) {
	var s Stamp
	raw, err := os.ReadFile(filepath.Join(dir, stampName))
	if errors.Is(err, fs.ErrNotExist) {
		return s, fmt.Errorf("%w: %s has no %s", ErrNotInstalled, dir, stampName)
	}
	if err != nil {
		return s, fmt.Errorf("read stamp: %w", err)
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		return s, fmt.Errorf("%w: %s in %s: %w", ErrNotInstalled, stampName, dir, err)
	}
	for name, size := range s.Files {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Size() != size {
			return s, fmt.Errorf("%w: %s in %s is missing or damaged", ErrNotInstalled, name, dir)
		}
	}
	return s, nil
}

// versioned matches the libraries that loaders look for under a plain name,
// e.g. libllama.cuda.v0.5.0.so for libllama.so.
var versioned = regexp.MustCompile(`^((?:lib)?(?:llama|ggml))(?:\.[a-z0-9]+)?\.v[0-9.]*[0-9](\.(?:so|dylib|dll))$`)

// library matches what a loader needs of a package; the rest serves Node.
var library = regexp.MustCompile(`\.(so|dylib|dll|metal)$`)

// stage copies the libraries of src into dst, adds the plain names and writes
// the stamp last.
func stage(dst, src string, p pkg) error {
	entries, err := os.ReadDir(src)
	if err != nil {
		return fmt.Errorf("read package: %w", err)
	}
	stamp := Stamp{Package: scope + p.name, Version: p.Version, Integrity: p.Integrity, Files: map[string]int64{}}
	for _, e := range entries {
		if !e.Type().IsRegular() || !library.MatchString(e.Name()) {
			continue
		}
		size, err := copyFile(filepath.Join(dst, e.Name()), filepath.Join(src, e.Name()))
		if err != nil {
			return err
		}
		stamp.Files[e.Name()] = size
		m := versioned.FindStringSubmatch(e.Name())
		if m == nil {
			continue
		}
		plain := m[1] + m[2]
		if err := link(dst, e.Name(), plain); err != nil {
			return err
		}
		stamp.Files[plain] = size
	}
	raw, err := json.MarshalIndent(stamp, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dst, stampName), append(raw, '\n'), 0o644); err != nil {
		return fmt.Errorf("write stamp: %w", err)
	}
	return nil
}

func copyFile(dst, src string) (int64, error) {
	in, err := os.Open(src)
	if err != nil {
		return 0, fmt.Errorf("read library: %w", err)
	}
	defer in.Close()
	out, err := os.OpenFile(dst, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return 0, fmt.Errorf("write library: %w", err)
	}
	n, err := io.Copy(out, in)
	if err := errors.Join(err, out.Sync(), out.Close()); err != nil {
		return 0, fmt.Errorf("write library: %w", err)
	}
	return n, nil
}

// link gives file a second name; where links are not allowed it copies.
func link(dir, file, name string) error {
	if os.Symlink(file, filepath.Join(dir, name)) == nil {
		return nil
	}
	_, err := copyFile(filepath.Join(dir, name), filepath.Join(dir, file))
	return err
}
