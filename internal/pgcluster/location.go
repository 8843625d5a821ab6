package pgcluster

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// pointerFile, in the data directory, names a cluster that lies elsewhere.
const pointerFile = "postgres.location"

// ownerFile, in a cluster that lies elsewhere, names its data directory.
const ownerFile = "data-directory"

// elsewhere are folders for the clusters of root callers whose data directory
// is closed to other users. Both survive a reboot.
func elsewhere() []string { return []string{"/var/lib/weir-postgres", "/var/tmp/weir-postgres"} }

// place finds or makes the folder of the cluster.
type place struct {
	dir       string // Weir's data directory
	cred      *syscall.Credential
	elsewhere []string
	// probe runs a server binary as cred inside a folder.
	probe func(dir string) error
}

func (p place) find() (home string, err error) {
	pointer := filepath.Join(p.dir, pointerFile)
	b, err := os.ReadFile(pointer)
	switch {
	case err == nil:
		return p.follow(pointer, strings.TrimSpace(string(b)))
	case !errors.Is(err, fs.ErrNotExist):
		return "", err
	}
	home = filepath.Join(p.dir, "postgres")
	if err := p.own(home); err != nil {
		return "", err
	}
	probed := p.probe(home)
	if probed == nil {
		return home, nil
	}
	if p.cred == nil {
		return "", probed
	}
	// Remove fails, rightly, when the folder is not the empty one just made.
	if err := os.Remove(home); err != nil {
		return "", fmt.Errorf("user %d may not use the cluster: %w", p.cred.Uid, probed)
	}
	return p.move(pointer, probed)
}

func (p place) follow(pointer, home string) (string, error) {
	if _, err := os.Stat(home); err != nil {
		return "", fmt.Errorf("%s names %q, which cannot be used (%w): restore it, or remove that file to start with an empty database", pointer, home, err)
	}
	return home, p.probe(home)
}

// move makes the folder outside of the data directory and remembers it there.
// Its name is random: a new data directory must never meet an old database.
func (p place) move(pointer string, why error) (string, error) {
	for _, base := range p.elsewhere {
		if err := os.MkdirAll(base, 0o711); err != nil {
			continue
		}
		var id [6]byte
		_, _ = rand.Read(id[:]) // never fails
		home := filepath.Join(base, hex.EncodeToString(id[:]))
		if err := p.own(home); err != nil {
			continue
		}
		if err := p.probe(home); err != nil {
			_ = os.Remove(home)
			continue
		}
		// So that an operator can tell whose a cluster is whose owner is gone.
		if err := os.WriteFile(filepath.Join(home, ownerFile), []byte(p.dir+"\n"), 0o600); err != nil {
			return "", err
		}
		return home, os.WriteFile(pointer, []byte(home+"\n"), 0o600)
	}
	return "", fmt.Errorf("no folder that user %d may enter: tried %s (%w) and %s", p.cred.Uid, p.dir, why, strings.Join(p.elsewhere, ", "))
}

// Remove deletes the cluster of a data directory, wherever it lies, with all its
// data. It refuses while the server runs. Removing the data directory alone
// would leave behind a cluster that had to move.
func Remove(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("remove cluster: %w", err)
	}
	home, pointer := filepath.Join(dir, "postgres"), filepath.Join(dir, pointerFile)
	if b, err := os.ReadFile(pointer); err == nil {
		home = strings.TrimSpace(string(b))
		// A damaged pointer must not cost anybody a folder.
		if owner, err := os.ReadFile(filepath.Join(home, ownerFile)); err != nil || strings.TrimSpace(string(owner)) != dir {
			return fmt.Errorf("remove cluster: %s names %q, which is not marked as the cluster of %s", pointer, home, dir)
		}
	}
	pid := readPID(filepath.Join(home, "data", "postmaster.pid"))
	if pid > 0 && syscall.Kill(pid, 0) == nil && !isOther(pid) {
		return fmt.Errorf("remove cluster: %s is in use by process %d", home, pid)
	}
	if err := errors.Join(os.RemoveAll(home), os.RemoveAll(shortDir(home))); err != nil {
		return fmt.Errorf("remove cluster: %w", err)
	}
	if err := os.Remove(pointer); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove cluster: %w", err)
	}
	return nil
}

// own makes the folder for the cluster's user alone.
func (p place) own(home string) error {
	if err := os.MkdirAll(home, 0o700); err != nil {
		return err
	}
	if p.cred == nil {
		return nil
	}
	if err := os.Chmod(home, 0o700); err != nil {
		return err
	}
	return os.Lchown(home, int(p.cred.Uid), int(p.cred.Gid))
}

// unprivileged returns the user to run Postgres as, or nil to stay who we are.
// A cluster that is there already keeps its owner.
func unprivileged(dir string) (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	if c := ownerOf(dir); c != nil {
		return c, nil
	}
	for _, name := range []string{"postgres", "weir", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err1 == nil && err2 == nil && uid != 0 {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
		}
	}
	return nil, errors.New("PostgreSQL does not run as root and there is no user postgres, weir or nobody: run 'useradd --system weir'")
}

func ownerOf(dir string) *syscall.Credential {
	home := filepath.Join(dir, "postgres")
	if b, err := os.ReadFile(filepath.Join(dir, pointerFile)); err == nil {
		home = strings.TrimSpace(string(b))
	}
	st, err := os.Stat(filepath.Join(home, "data"))
	if err != nil {
		return nil
	}
	if s, ok := st.Sys().(*syscall.Stat_t); ok && s.Uid != 0 {
		return &syscall.Credential{Uid: s.Uid, Gid: s.Gid}
	}
	return nil
}

// probe checks that cred may run b inside dir: the truth, where reading modes
// would miss access lists and read-only mounts.
func probe(ctx context.Context, b Binaries, cred *syscall.Credential) func(string) error {
	return func(dir string) error {
		_, err := runAs(ctx, cred, dir, b.path("postgres"), "--version")
		return err
	}
}
