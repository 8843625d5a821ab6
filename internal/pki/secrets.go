package pki

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// WriteSecret writes data to path with mode 0600, by rename, so that a reader
// sees the old file, the whole new one or none.
func WriteSecret(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // CreateTemp makes it 0600
	if err != nil {
		return fmt.Errorf("write secret: %w", err)
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("write secret: %w", err)
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("write secret: %w", err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("write secret: sync %s: %w", dir, err)
	}
	return nil
}

// maxSecret bounds what is read from a file of keys or certificates.
const maxSecret = 1 << 20

// ReadSecret reads a private file. A file that everybody may read is refused,
// because its secret is no longer one.
func ReadSecret(path string) ([]byte, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if st.Mode().Perm()&0o007 != 0 {
		return nil, fmt.Errorf("%s is open to other users (mode %04o): chmod 600 it", path, st.Mode().Perm())
	}
	if st.Size() > maxSecret {
		return nil, fmt.Errorf("%s is not a key file: it has %d bytes", path, st.Size())
	}
	return os.ReadFile(path)
}

// withLock runs f while no other process does so for the same directory,
// which it makes (0700) when missing.
func withLock(dir string, f func() error) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make secrets directory: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("lock secrets directory: %w", err)
	}
	defer lock.Close() // closing releases the lock
	for {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("lock secrets directory: %w", err)
	}
	return f()
}

func exists(path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
