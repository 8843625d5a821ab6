package symptoms

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// machinePressure tells how short the whole machine's memory is.
const machinePressure = "/proc/pressure/memory"

// pressureFiles are the files that tell how short memory is, the nearest first:
// of the worker's own control group, else of the machine. Both are Linux's (PSI).
func pressureFiles() []string {
	data, _ := os.ReadFile("/proc/self/cgroup") // empty elsewhere
	return []string{filepath.Join("/sys/fs/cgroup", groupOf(data), "memory.pressure"), machinePressure}
}

// groupOf reads a process's control group (cgroups(7)): the line of version 2 is
// "0::/system.slice/weir.service". It is "/" in a container that sees no group but
// its own, where there is no such line, and for a group beyond what is mounted.
func groupOf(data []byte) string {
	for line := range strings.Lines(string(data)) {
		group, found := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::/")
		if found && filepath.IsLocal(group) {
			return "/" + group
		}
	}
	return "/"
}

// parsePressure reads the share of the last minute, in percent, in which all
// tasks waited, from Linux's pressure stall information
// (Documentation/accounting/psi.rst): lines such as
//
//	full avg10=0.00 avg60=1.25 avg300=0.31 total=123
func parsePressure(data []byte) (percent float64, ok bool) {
	for line := range bytes.Lines(data) {
		fields := bytes.Fields(line)
		if len(fields) == 0 || string(fields[0]) != "full" {
			continue
		}
		for _, f := range fields[1:] {
			value, found := bytes.CutPrefix(f, []byte("avg60="))
			if !found {
				continue
			}
			n, err := strconv.ParseFloat(string(value), 64)
			return n, err == nil && n >= 0 && n <= 100
		}
	}
	return 0, false
}
