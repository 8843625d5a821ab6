//go:build unix

package spool

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

func mapFile(f *os.File, size int64) ([]byte, error) {
	mem, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", f.Name(), err)
	}
	return mem, nil
}

func unmapFile(mem []byte) error {
	if mem == nil {
		return nil
	}
	return unix.Munmap(mem)
}

func syncMapping(mem []byte) error {
	if mem == nil {
		return nil
	}
	return unix.Msync(mem, unix.MS_SYNC)
}

// lockDir takes the directory for this process until the file is closed.
func lockDir(f *os.File) error {
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
}
