package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weirhq/weir/tenants"
)

// mine panics where it is armed, once in a request's life.
type mine struct {
	mu     sync.Mutex
	at     string
	later  int // how often the place is passed before
	tokens int // before the panic at "tokens"
	open   int // grants that have not ended
	begun  int // attempts
	rows   []tenants.UsageRecord
}

func (m *mine) step(at string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.at == at {
		if m.later--; m.later >= 0 {
			return
		}
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
func (m *mine) Room(Work) bool         { return true }
func (m *mine) Moves(string) bool      { return true }

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

// TestPanicWhileADraftWaits is the same of a cascade, whose small pool's answer
// waits for the large one's: no attempt gets two rows.
func TestPanicWhileADraftWaits(t *testing.T) {
	for _, c := range []struct {
		at            string
		later, tokens int
		begun         int
		head          bool
	}{
		{"attempt", 0, 0, 0, false}, {"attempt", 1, 0, 1, false}, {"head", 0, 0, 2, false}, {"tokens", 0, 1, 2, false}, {"tokens", 0, 3, 2, true},
		{"row", 0, 0, 2, false}, {"row", 1, 0, 2, true}, {"grant", 0, 0, 2, true},
	} {
		for _, stream := range []bool{false, true} {
			if c.at == "tokens" && !stream {
				continue // a whole answer is settled at once
			}
			m := &mine{tokens: c.tokens, at: c.at, later: c.later}
			r, small, _ := cascadeRig(t, func(o *Options) { o.Admission, o.Recorder = m, m })
			small.on(smallSays("hm", -3))
			got := r.chat(t, fmt.Sprintf(`{"model":"auto","stream":%t,"messages":[{"role":"user","content":"hi"}]}`, stream))
			if got.status != 500 && !(stream && c.head) || strings.Contains(got.body, "[DONE]") {
				t.Errorf("%+v, stream %t: status %d, %s", c, stream, got.status, got.body)
			}
			await(t, "the request is over", func() bool { return r.InFlight() == 0 })
			m.mu.Lock()
			ids := map[string]bool{}
			for _, row := range m.rows {
				ids[row.AttemptID] = true
			}
			if m.at != "" || m.open != 0 || m.begun != c.begun || len(m.rows) != c.begun || len(ids) != c.begun {
				t.Errorf("%+v, stream %t: armed %q, %d grants open, %d attempts begun with rows %v", c, stream, m.at, m.open, m.begun, outcomes(m.rows))
			}
			if c.begun > 0 && len(m.rows) > 0 && m.rows[0].Outcome != tenants.OutcomeEscalated {
				t.Errorf("%+v, stream %t: the draft's row is %q", c, stream, m.rows[0].Outcome)
			}
			m.mu.Unlock()
		}
	}
}

// fullAfter is a recorder that has room for some attempts only.
type fullAfter struct {
	Recorder
	left atomic.Int32
}

func (f *fullAfter) Begin(r *tenants.UsageRecord) (Entry, error) {
	if f.left.Add(-1) < 0 {
		return nil, errors.New("the disk is full")
	}
	return f.Recorder.Begin(r)
}

// TestDraftStandsInForAnUnrecordedAttempt: what the small pool has said is the
// answer, and has one row, when no further attempt can be written down.
func TestDraftStandsInForAnUnrecordedAttempt(t *testing.T) {
	for _, stream := range []bool{false, true} {
		full := &fullAfter{}
		full.left.Store(1)
		r, small, large := cascadeRig(t, func(o *Options) { full.Recorder, o.Recorder = o.Recorder, full })
		small.on(smallSays("hm", -3))
		got := r.chat(t, fmt.Sprintf(`{"model":"auto","stream":%t,"messages":[{"role":"user","content":"hi"}]}`, stream))
		rows := r.newRows(t)
		if got.status != 200 || !strings.Contains(got.body, "hm") || large.asked() != 0 {
			t.Errorf("stream %t: %d %s", stream, got.status, got.body)
		}
		if len(rows) != 1 || rows[0].Outcome != tenants.OutcomeOK || rows[0].Model != "small" {
			t.Errorf("stream %t: rows %v", stream, outcomes(rows))
		}
		if w := weirOfEnd(t, got); w["attempts"] != 1.0 || w["reason"] != "cloud_error" {
			t.Errorf("stream %t: %v", stream, w)
		}
	}
}
