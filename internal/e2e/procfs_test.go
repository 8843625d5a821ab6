package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// parentOf reads the parent's pid, 0 when there is none.
func parentOf(pid int) int {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	var state string
	var parent int
	_, _ = fmt.Sscan(rest, &state, &parent)
	return parent
}

func isChildOf(pid, parent int) bool { return parentOf(pid) == parent }

// childrenOf lists the processes whose parent is pid.
func childrenOf(t *testing.T, pid int) []int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Skip("no /proc here")
	}
	var out []int
	for _, e := range entries {
		var p int
		if _, err := fmt.Sscan(e.Name(), &p); err == nil && parentOf(p) == pid {
			out = append(out, p)
		}
	}
	return out
}
