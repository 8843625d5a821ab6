// Package testproc is what tests of real processes share: the weir binary, a
// log that is read while it is written, and addresses that are free. Only tests
// import it.
package testproc

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

var build struct {
	sync.Once
	dir, path string
	err       error
}

// Binary returns the path of the weir binary: WEIR_BIN, or one that is built
// once for this test binary. Clean removes it.
func Binary() (string, error) {
	build.Do(func() {
		if build.path = os.Getenv("WEIR_BIN"); build.path != "" {
			return
		}
		if build.dir, build.err = os.MkdirTemp("", "weir-bin-"); build.err != nil {
			return
		}
		build.path = filepath.Join(build.dir, "weir")
		if out, err := exec.Command("go", "build", "-o", build.path, "github.com/weirhq/weir").CombinedOutput(); err != nil {
			build.err = fmt.Errorf("build: %w: %s", err, out)
		}
	})
	return build.path, build.err
}

// Clean removes what Binary has built. TestMain calls it before it exits.
func Clean() {
	if build.dir != "" {
		_ = os.RemoveAll(build.dir)
	}
}

// Log collects the output of a process or a logger; the zero value is empty.
type Log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Tail is the last 3,000 bytes.
func (l *Log) Tail() string {
	s := l.String()
	return s[max(0, len(s)-3000):]
}

// FreeAddr is a loopback address that nobody listens on.
func FreeAddr(t testing.TB) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}
