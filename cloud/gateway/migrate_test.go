package gateway

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/tenants"
)

// order posts to an instance and reports whether it agreed.
func (b *bench) order(t *testing.T, name, verb, body string) bool {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Post("http://"+b.doors[name].Addr().String()+"/instance/v1/"+verb, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// TestMigration: a worker gives an answer away in the middle of a stream,
// because it is told to or because it drains.
func TestMigration(t *testing.T) {
	for _, drains := range []bool{false, true} {
		b := newBench(t, func(o *Options) { o.Policy = preferring("a") }, true, "a", "b")
		want := text(t, b.chat(t, ask1).body)
		gate := make(chan struct{})
		b.hold.Store(&gate)
		done := b.later(t, ask1su)
		await(t, "the answer is given away", func() bool {
			op := b.engines["a"].Operation()
			if op == "" {
				return false
			}
			if !drains {
				return b.order(t, "a", "migrate", `{"operation":"`+op+`"}`)
			}
			return b.order(t, "a", "drain", `{"draining":true}`) && b.engines["a"].Leaves(op)
		})
		close(gate)
		got := take(t, "the answer", done)
		rows := b.ledger(t)[1:]
		if len(rows) != 2 || rows[0].Outcome != tenants.OutcomeSuperseded || rows[1].Outcome != tenants.OutcomeOK || rows[0].OutputTokens+rows[1].OutputTokens != 16 {
			t.Fatalf("drains %v: ledger %v", drains, outcomes(rows))
		}
		if shown := text(t, got.body); shown != want {
			t.Errorf("shown %q, want %q", shown, want)
		}
		b.checkWholeStream(t, got.body, 16)
		await(t, "no blocks held", func() bool { return b.engines["b"].Held() == 0 })
		if b.failures("a") != 0 {
			t.Errorf("%d failures", b.failures("a"))
		}
	}
}

// TestNobodyTakesTheAnswer: a worker gives an answer away and no other is left:
// the client is told that it was cut.
func TestNobodyTakesTheAnswer(t *testing.T) {
	in := newInstance(t, "a", "mixed")
	in.on(func(w http.ResponseWriter, r *http.Request, body map[string]any) bool {
		in.stream(w, r, body, 2)
		_, _ = io.WriteString(w, `data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"migrated"}],"weir_migrated":{"weir_resume":{"text":"the light "}},"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}`+"\n\n")
		return true
	})
	r := newRig(t, nil, in)
	got := r.chat(t, ask1s)
	ev := events(got.body)
	if last := ev[len(ev)-1]; strings.Contains(got.body, "[DONE]") || errorOf(t, last)["code"] != "upstream_truncated" {
		t.Errorf("the stream ends with %s", last)
	}
	// The third token was made here and not shown yet: it is in the row of who made it.
	if rows := r.ledger(t); len(rows) != 1 || rows[0].Outcome != tenants.OutcomeSuperseded || rows[0].OutputTokens != 3 || rows[0].InputTokens != 7 {
		t.Errorf("ledger %+v", rows)
	}
}

// resuming is preferring of instances that can all go on with an answer.
type resuming struct{ preferring }

func (p resuming) Decide(o *route.Observation) route.Decision {
	for i := range o.Inst {
		o.Inst[i].Resumes = true
	}
	return p.preferring.Decide(o)
}

// TestMoveBeforeTheFirstText: an answer moves while its first tokens are held
// back. The prompt is charged once, the sums have every token, and the client
// gets one answer of one head.
func TestMoveBeforeTheFirstText(t *testing.T) {
	a, b := newInstance(t, "a", "mixed"), newInstance(t, "b", "mixed")
	a.on(func(w http.ResponseWriter, r *http.Request, body map[string]any) bool {
		a.stream(w, r, body, 0)
		_, _ = io.WriteString(w, `data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"migrated"}],"weir_migrated":{"weir_resume":{"text":"","tokens":[1,2,3]}},"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}`+"\n\n")
		return true
	})
	door := gate{settled: make(chan tenants.UsageRecord, 1)}
	door.admit = func(context.Context, Work) (Grant, error) { return door, nil }
	r := newRig(t, func(o *Options) { o.Policy, o.Admission = resuming{"a"}, door }, a, b)
	got := r.chat(t, ask1su)
	rows := r.ledger(t)
	if len(rows) != 2 || rows[0].Outcome != tenants.OutcomeSuperseded || rows[0].InputTokens != 7 || rows[0].OutputTokens != 3 ||
		rows[1].Outcome != tenants.OutcomeOK || rows[1].InputTokens != 0 || rows[1].OutputTokens != 4 {
		t.Fatalf("ledger %+v, answer %s", rows, got.body)
	}
	if sum := take(t, "the grant's end", door.settled); sum.InputTokens != 7 || sum.OutputTokens != 7 {
		t.Errorf("settled with %+v", sum)
	}
	if shown := text(t, got.body); shown != "the light is on" || strings.Count(got.body, `"role"`) != 1 || !strings.Contains(got.body, `"completion_tokens":7`) {
		t.Errorf("answer %s", got.body)
	}
}
