package testpg

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// Pause stops the server's processes without ending them, as a hung disk
// does: connections stay open and nobody answers. Resume, or the test's end,
// lets them go on. It needs Linux and skips the test elsewhere.
func (s *Server) Pause(t testing.TB) {
	t.Helper()
	pids := s.processes()
	if len(pids) == 0 {
		t.Skip("testpg: Pause needs /proc")
	}
	t.Cleanup(s.Resume)
	for _, pid := range pids { // the postmaster first, so that it starts no more
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil && !errors.Is(err, syscall.ESRCH) { // one may just have ended
			t.Fatalf("testpg: pause process %d: %v", pid, err)
		}
	}
}

// Resume ends a Pause.
func (s *Server) Resume() {
	for _, pid := range s.processes() {
		_ = syscall.Kill(pid, syscall.SIGCONT) // it may have ended
	}
}

// processes returns the postmaster and its children, or none where there is
// no /proc.
func (s *Server) processes() []int {
	b, err := os.ReadFile(filepath.Join(s.cluster.Home(), "data", "postmaster.pid"))
	if err != nil {
		return nil
	}
	line, _, _ := bytes.Cut(b, []byte("\n"))
	postmaster, err := strconv.Atoi(string(line))
	if err != nil {
		return nil
	}
	var out []int
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is well-formed
	for _, path := range stats {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		switch {
		case pid == postmaster:
			out = append([]int{pid}, out...)
		case parentOf(path) == postmaster:
			out = append(out, pid)
		}
	}
	return out
}

// parentOf reads the parent's pid, the second field after the command's name
// in parentheses.
func parentOf(stat string) int {
	b, err := os.ReadFile(stat)
	if err != nil {
		return 0
	}
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 2 {
		return 0
	}
	ppid, _ := strconv.Atoi(string(fields[1]))
	return ppid
}
