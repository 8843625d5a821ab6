//go:build !linux

package pgcluster

import "syscall"

// dieWithParent does nothing: only Linux has a parent-death signal. Elsewhere
// the next start finds the orphan and says which process to stop.
func dieWithParent(*syscall.SysProcAttr) {}

// isOther cannot tell here.
func isOther(int) bool { return false }
