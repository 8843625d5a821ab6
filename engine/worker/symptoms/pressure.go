package symptoms

import (
	"bytes"
	"strconv"
)

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
