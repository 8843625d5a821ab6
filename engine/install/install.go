package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

// Options say what to install and where.
type Options struct {
	Dir     string // library folder; it and its parents are created
	Variant string // "cpu", "cuda", "vulkan", "metal"; empty: the platform's default
	// Progress gets one line before a long step; nil is silent.
	Progress func(line string)
}

// Install puts the pinned libraries into o.Dir and returns its stamp. It does
// nothing when they are there already, waits for another Install of the same
// folder, and replaces the folder in one step, so that an interrupted run
// leaves the old state. A folder that holds something else is never replaced.
func Install(ctx context.Context, o Options) (Stamp, error) {
	p, err := choose(runtime.GOOS, runtime.GOARCH, o.Variant)
	if err != nil {
		return Stamp{}, err
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return Stamp{}, fmt.Errorf("library folder: %w", err)
	}
	if s, ok := current(dir, p); ok {
		return s, nil
	}
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return Stamp{}, fmt.Errorf("library folder: %w", err)
	}
	unlock, err := lock(ctx, filepath.Join(parent, "."+filepath.Base(dir)+".lock"))
	if err != nil {
		return Stamp{}, fmt.Errorf("lock library folder: %w", err)
	}
	defer unlock()
	if s, ok := current(dir, p); ok {
		return s, nil
	}
	if err := replace(ctx, dir, p, o.Progress); err != nil {
		return Stamp{}, err
	}
	return ReadStamp(dir)
}

// current tells whether dir holds exactly p.
func current(dir string, p pkg) (Stamp, bool) {
	s, err := ReadStamp(dir)
	return s, err == nil && s.Package == scope+p.name && s.Version == p.Version && s.Integrity == p.Integrity
}

// replace builds the folder beside dir and moves it there. The lock is held,
// so leftovers of an interrupted run can be removed.
func replace(ctx context.Context, dir string, p pkg, progress func(string)) error {
	if err := ours(dir); err != nil {
		return err
	}
	prefix := filepath.Join(filepath.Dir(dir), "."+filepath.Base(dir)+".tmp-")
	if old, err := filepath.Glob(prefix + "*"); err == nil {
		for _, d := range old {
			os.RemoveAll(d)
		}
	}
	work, err := os.MkdirTemp(filepath.Dir(dir), filepath.Base(prefix)+"*")
	if err != nil {
		return fmt.Errorf("library folder: %w", err)
	}
	defer os.RemoveAll(work)
	if progress != nil {
		progress(fmt.Sprintf("fetching %s%s %s with npm", scope, p.name, p.Version))
	}
	src, err := fetch(ctx, work, p)
	if err != nil {
		return err
	}
	fresh := filepath.Join(work, "new")
	if err := os.Mkdir(fresh, 0o755); err != nil {
		return fmt.Errorf("library folder: %w", err)
	}
	if err := stage(fresh, src, p); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return swap(fresh, dir, filepath.Join(work, "old"))
}

// ours refuses a folder with content that Install did not put there.
func ours(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("library folder: %w", err)
	}
	for _, e := range entries {
		if e.Name() == stampName {
			return nil
		}
	}
	if len(entries) > 0 {
		return fmt.Errorf("%s is not empty and was not made by 'weir engine install': name another folder with --lib", dir)
	}
	return nil
}

// swap moves fresh to dir, and what is there to old.
func swap(fresh, dir, old string) error {
	if err := os.Rename(dir, old); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("move old libraries away: %w", err)
	}
	if err := os.Rename(fresh, dir); err != nil {
		return errors.Join(fmt.Errorf("move libraries into place: %w", err), os.Rename(old, dir))
	}
	return nil
}
