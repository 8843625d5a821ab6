// Package testproc is what tests of real processes share: the weir binary, a
// log that is read while it is written, and addresses that are free. Only tests
// import it.
package testproc

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weirhq/weir/internal/listen"
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

// FreeAddr draws from these ports: below the numbers that systems give to who
// asks for any (from 32,768 on), which a client may hold when the process that
// is to listen comes, or comes again.
const firstPort, ports = 10000, 6000

var drawn atomic.Uint32

// FreeAddr is a loopback address that nobody listens on, with TCP or UDP, and
// that this process has not had before.
func FreeAddr(t testing.TB) string {
	t.Helper()
	for range ports {
		// Test binaries that run at once have neighbouring process ids.
		n := (os.Getpid()*97 + int(drawn.Add(1))) % ports
		tcp, udp, err := listen.Both(fmt.Sprintf("127.0.0.1:%d", firstPort+n))
		if err != nil {
			continue
		}
		defer tcp.Close()
		defer udp.Close()
		return tcp.Addr().String()
	}
	t.Fatalf("none of %d ports is free", ports)
	return ""
}
