package testproc

import (
	"fmt"
	"os"
	"time"

	"go.uber.org/goleak"
)

// leaksEnd is for how long goroutines may take to end after the last test: goleak
// alone waits for a second or so, which a machine may stand still.
const leaksEnd = 30 * time.Second

// Leaks finds goroutines that outlive all tests.
func Leaks() error {
	for deadline := time.Now().Add(leaksEnd); ; {
		if err := goleak.Find(); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// VerifyMain runs a package's tests, looks for leaks where they pass, and exits.
func VerifyMain(m interface{ Run() int }) {
	code := m.Run()
	if code == 0 {
		if err := Leaks(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}
