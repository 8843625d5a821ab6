package gateway

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/weirhq/weir/tenants"
)

// mine panics where it is armed, once in a request's life.
type mine struct {
	mu     sync.Mutex
	at     string
	tokens int // before the panic at "tokens"
	open   int // grants that have not ended
	begun  int // attempts
	rows   []tenants.UsageRecord
}

func (m *mine) step(at string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.at == at {
		m.at = ""
		panic("secret detail")
	}
}

func (m *mine) add(n *int, by int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	*n += by
}

func (m *mine) Admit(context.Context, Work) (Grant, error) {
	m.step("admission")
	m.add(&m.open, 1)
	return m, nil
}

func (m *mine) Correct(int)            { m.step("prefill") }
func (m *mine) SetHeaders(http.Header) { m.step("head") }

func (m *mine) Delivered(n int) error {
	if n >= m.tokens {
		m.step("tokens")
	}
	return nil
}

func (m *mine) Begin(*tenants.UsageRecord) (Entry, error) {
	m.step("attempt")
	m.add(&m.begun, 1)
	return minedEntry{m}, nil
}

// Settle ends the grant.
func (m *mine) Settle(tenants.UsageRecord) {
	m.add(&m.open, -1)
	m.step("grant")
}

type minedEntry struct{ m *mine }

// Settle takes the attempt's row.
func (e minedEntry) Settle(r *tenants.UsageRecord) error {
	e.m.mu.Lock()
	e.m.rows = append(e.m.rows, *r)
	e.m.mu.Unlock()
	e.m.step("row")
	return nil
}

// TestPanicAtEveryStage: whatever stage of a request panics, its grant ends
// once, each attempt that was begun has its one row, and no half answer looks
// like a whole one (requirement 4).
func TestPanicAtEveryStage(t *testing.T) {
	for _, c := range []struct {
		at     string
		tokens int
		begun  int // attempts
		head   bool
	}{
		{"admission", 0, 0, false}, {"attempt", 0, 0, false}, {"prefill", 0, 1, false}, {"head", 0, 1, false}, {"tokens", 1, 1, false},
		{"tokens", 3, 1, true}, {"row", 0, 1, true}, {"grant", 0, 1, true},
	} {
		for _, body := range []string{ask1, ask1s} {
			if c.at == "tokens" && body == ask1 {
				continue // a whole answer is settled at once
			}
			m := &mine{tokens: c.tokens, at: c.at}
			r := newRig(t, func(o *Options) { o.Admission, o.Recorder = m, m }, newInstance(t, "p", "prefill"), newInstance(t, "d", "decode"))
			got := r.chat(t, body)
			streams := body == ask1s
			if whole := got.status == 200 && got.err == nil && (!streams || strings.Contains(got.body, "[DONE]")); whole {
				t.Errorf("%s %d, stream %t: answered %d %s", c.at, c.tokens, streams, got.status, got.body)
			}
			if got.status != 500 && !(streams && c.head) || strings.Contains(got.body, "secret detail") {
				t.Errorf("%s %d, stream %t: status %d, %s", c.at, c.tokens, streams, got.status, got.body)
			}
			await(t, "the request is over", func() bool { return r.InFlight() == 0 })
			m.mu.Lock()
			if m.at != "" || m.open != 0 || m.begun != c.begun || len(m.rows) != c.begun {
				t.Errorf("%s %d, stream %t: armed %q, %d grants open, %d attempts begun with %d rows", c.at, c.tokens, streams, m.at, m.open, m.begun, len(m.rows))
			}
			for _, row := range m.rows {
				settled := c.at == "row" || c.at == "grant" || c.at == "head" && !streams
				if (row.Outcome == tenants.OutcomeOK) != settled {
					t.Errorf("%s %d, stream %t: outcome %q", c.at, c.tokens, streams, row.Outcome)
				}
			}
			m.mu.Unlock()
		}
	}
}
