package pgcluster

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// dieWithParent has the kernel ask postgres for a fast shutdown when the guard
// itself is killed.
func dieWithParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGINT }

// isOther reports whether a living process is surely not a postgres.
func isOther(pid int) bool {
	exe, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "exe"))
	// A program whose file an upgrade has replaced reads "postgres (deleted)".
	return err == nil && !strings.HasPrefix(filepath.Base(exe), "postgres")
}
