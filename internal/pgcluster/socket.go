package pgcluster

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// shortDir returns the folder for the socket of a cluster whose own path is
// too long for one.
func shortDir(home string) string {
	sum := sha256.Sum256([]byte(home))
	return filepath.Join("/tmp", "weir-pg-"+hex.EncodeToString(sum[:8]))
}

// checkOwner refuses a folder that somebody else has put in the way: whoever
// owns it could pose as the database.
func checkOwner(dir string, cred *syscall.Credential) error {
	st, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	s, ok := st.Sys().(*syscall.Stat_t)
	want := uint32(os.Geteuid())
	if cred != nil {
		want = cred.Uid
	}
	if !st.IsDir() || !ok || s.Uid != want || st.Mode().Perm() != 0o700 {
		return fmt.Errorf("socket folder %s is not ours: remove it", dir)
	}
	return nil
}
