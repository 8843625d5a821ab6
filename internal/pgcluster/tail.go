package pgcluster

import (
	"bytes"
	"io"
	"strings"
	"sync"
)

// tail passes a program's output on and remembers its last lines, in which it
// says why it ended. It is safe for concurrent use.
type tail struct {
	out io.Writer // may be nil

	mu   sync.Mutex
	last []byte
}

const tailBytes = 4 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	t.last = append(t.last, b...)
	if len(t.last) > tailBytes {
		t.last = t.last[len(t.last)-tailBytes:]
	}
	t.mu.Unlock()
	if t.out != nil {
		_, _ = t.out.Write(b) // a full log must not stop the database
	}
	return len(b), nil
}

// reason returns ": " and the most telling of the last lines, or "".
func (t *tail) reason() string {
	t.mu.Lock()
	lines := strings.Split(string(bytes.TrimSpace(t.last)), "\n")
	t.mu.Unlock()
	best := ""
	for _, l := range lines {
		l = strings.TrimSpace(l)
		for _, word := range []string{"PANIC:", "FATAL:", "error:", "ERROR:"} {
			if i := strings.Index(l, word); i >= 0 {
				best = l[i:]
			}
		}
		if strings.Contains(best, "No space left on device") {
			break // what follows is its consequence
		}
	}
	if best == "" {
		best = strings.TrimSpace(lines[len(lines)-1])
	}
	if best == "" {
		return ""
	}
	return ": " + best
}
