package worker_test

import "go.uber.org/goleak"

// leaks finds goroutines that outlived all tests.
func leaks() error { return goleak.Find() }
