package local_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/learn"
	"github.com/weirhq/weir/cascade/verifier"
	"github.com/weirhq/weir/edge/internal/cloudtest"
	"github.com/weirhq/weir/edge/internal/workertest"
	"github.com/weirhq/weir/edge/learning"
	"github.com/weirhq/weir/edge/local"
	"github.com/weirhq/weir/tenants"
)

// telling is a table of three samples by which YES is worth a lot.
func telling() *verifier.Table {
	t := verifier.New(3)
	for range 200 {
		t.Observe(verifier.BothRight, 3, 1)
		t.Observe(verifier.OnlyCloud, 0, 1)
	}
	return t
}

// startVerifying starts a node whose tenant verifies, with a table that is usable.
func startVerifying(t *testing.T) (*node, *pupil, *records) {
	n, p, log := startPupil(t)
	n.verifies(p)
	return n, p, log
}

// verifies lets a node's tenant verify, with a table that is usable.
func (n *node) verifies(p *pupil) {
	p.set(func(v *learn.View) {
		v.Verifier, v.VerifierGrade, v.CloudQuality = telling(), learn.GradeUsable, .95
	})
	n.setPolicy(2, tenants.Policy{Spec: json.RawMessage(`{"verify":{"samples":3},"shadow":0}`)})
}

// Replies whose signal alone keeps, or lets over, and that votes may turn.
var (
	keeps    = workertest.Reply{Text: "from the edge", Logprob: -.06}
	letsOver = workertest.Reply{Text: "from the edge", Logprob: -.3}
)

func voting(r workertest.Reply, v workertest.Vote) workertest.Reply {
	r.Vote = v
	return r
}

// Votes turn a kept answer into an escalation and back; what it took is in the
// ledger, in the record and in the explanation.
func TestVotesTurnTheVerdict(t *testing.T) {
	n, p, log := startVerifying(t)
	table := telling()
	for i, tt := range []struct {
		name    string
		reply   workertest.Reply
		tier    cascade.Tier
		reason  cascade.Reason
		yes     int
		outcome string
		asked   int
	}{
		{"kept, and right", voting(keeps, workertest.Vote{Yes: .95}), cascade.TierEdge, cascade.ReasonConfident, 3, "same", 1},
		{"kept, but wrong", voting(keeps, workertest.Vote{Yes: .05}), cascade.TierCloud, cascade.ReasonLowConfidence, 0, "escalates", 1},
		{"doubtful, and wrong", voting(letsOver, workertest.Vote{Yes: .05}), cascade.TierCloud, cascade.ReasonLowConfidence, 0, "same", 1},
		{"doubtful, but right", voting(letsOver, workertest.Vote{Yes: .95}), cascade.TierEdge, cascade.ReasonConfident, 3, "keeps", 1},
		{"samples where nothing is told", voting(letsOver, workertest.Vote{Sampled: "yyy"}), cascade.TierCloud, cascade.ReasonLowConfidence, -1, "unsupported", 1},
		{"which the table is not for", voting(letsOver, workertest.Vote{Sampled: "yyy"}), cascade.TierCloud, cascade.ReasonLowConfidence, -1, "not_viable", 0},
		{"and then they are asked for", voting(letsOver, workertest.Vote{Sampled: "yyy"}), cascade.TierEdge, cascade.ReasonConfident, 3, "keeps", 1},
	} {
		if i == 6 {
			if err := json.Unmarshal([]byte(`{"prompt":1,"votes":3,"sampled":true,"counts":[[0,0,0,200],[200,0,0,0],[0,0,0,0],[0,0,0,0]],"squares":400}`), table); err != nil {
				t.Fatal(err)
			}
			p.set(func(v *learn.View) { v.Verifier = table })
		}
		n.worker.Set(tt.reply)
		asked, rows := len(n.worker.Seen()), len(n.rows.all())
		a := n.chat("")
		settled(t, log, i+1)
		r := log.last()
		if a.weir.Tier != tt.tier || a.weir.Reason != tt.reason {
			t.Errorf("%s: %+v", tt.name, a.weir)
		}
		if calls := len(n.worker.Seen()) - asked; calls != 1+tt.asked {
			t.Errorf("%s: the worker was asked %d times", tt.name, calls)
		}
		e := n.get("/v1/weir/requests/"+a.header.Get("X-Request-Id"), 200)
		if !strings.Contains(e, fmt.Sprintf(`"verify":{"outcome":%q`, tt.outcome)) || !strings.Contains(e, `"grade":"usable"`) {
			t.Errorf("%s: explained by %s", tt.name, e)
		}
		attempts := 1 + tt.asked
		if tt.tier == cascade.TierCloud {
			attempts++
		}
		if a.weir.Attempts != attempts || a.weir.EdgeTokens != 4+tt.asked {
			t.Errorf("%s: %d attempts, %d tokens", tt.name, a.weir.Attempts, a.weir.EdgeTokens)
		}
		all := n.rows.all()[rows:]
		if len(all) != 1+tt.asked || tt.asked == 1 && (all[0].ErrorCode != "verify" || all[0].Outcome != tenants.OutcomeEscalated || all[0].InputTokens != 11 || all[0].OutputTokens != 1 ||
			all[0].AttemptID == all[1].AttemptID || all[0].OperationID != all[1].OperationID) {
			t.Errorf("%s: rows %+v", tt.name, all)
		}
		if tt.yes < 0 {
			if r.Votes != nil {
				t.Errorf("%s: %+v", tt.name, r.Votes)
			}
			continue
		}
		if r.Votes == nil || !table.Reads(*r.Votes) || r.Votes.Yes != tt.yes || r.Before == nil || *r.Before == *r.Conf {
			t.Fatalf("%s: record %+v", tt.name, r)
		}
		pol := cascade.ThresholdPolicy(.75)
		if pe, _ := cascade.Voted(*r.Before, pol, .95, table, r.Votes.Yes); pe != *r.Conf || (pe < .75) != (tt.tier == cascade.TierCloud) {
			t.Errorf("%s: played again %v, was %v", tt.name, pe, *r.Conf)
		}
	}
	if m := n.metric("weir_edge_verify_total", "keeps"); m != 2 {
		t.Errorf("metric %v", m)
	}
}

// metric is the value of a counter with one label.
func (n *node) metric(name, label string) (value float64) {
	n.t.Helper()
	all, err := n.tel.Registry.Gather()
	if err != nil {
		n.t.Fatal(err)
	}
	for _, family := range all {
		for _, m := range family.GetMetric() {
			if family.GetName() == name && m.GetLabel()[0].GetValue() == label {
				value += m.GetCounter().GetValue()
			}
		}
	}
	return value
}

// Nobody is asked where votes could change nothing, or must not; the verdict is
// then that of the signal.
func TestWhatIsNotVerified(t *testing.T) {
	n, p, log := startVerifying(t)
	n.worker.SayNothing()
	eventually(t, "a worker that may take tools", func() bool { h, _ := n.health(); return h.Context == 0 })
	calls := `[{"index":0,"id":"c","function":{"name":"f","arguments":"{}"}}]`
	for i, tt := range []struct {
		name    string
		view    func(*learn.View)
		reply   workertest.Reply
		body    string
		head    []string
		outcome string // "" where the settings do not come into it
	}{
		{"sure", nil, confident, "", nil, "certain"},
		{"a table that is not usable", func(v *learn.View) { v.VerifierGrade = learn.GradeWeak }, keeps, "", nil, "not_viable"},
		{"a table for other samples", func(v *learn.View) { v.Verifier = verifier.New(5) }, keeps, "", nil, "not_viable"},
		{"no table", func(v *learn.View) { v.Verifier, v.VerifierGrade = nil, learn.GradeUnknown }, keeps, "", nil, "not_viable"},
		{"no signal", nil, workertest.Reply{Text: "x", NoProbs: true}, "", nil, "signal_unusable"},
		{"local-only", nil, keeps, "", []string{"X-Weir-Privacy", "local-only"}, ""},
		{"edge-only", nil, keeps, "", []string{"X-Weir-Mode", "edge-only"}, ""},
		{"no time for the cloud", nil, keeps, "", []string{"X-Weir-Deadline-Ms", "1"}, ""},
		{"a tool call", nil, workertest.Reply{Logprob: -.06, Calls: calls}, `,"tools":[{"type":"function","function":{"name":"f"}}]`, nil, "no_text"},
		{"a broken form", nil, keeps, `,"response_format":{"type":"json_object"}`, nil, "validator_failed"},
	} {
		p.set(func(v *learn.View) { v.Verifier, v.VerifierGrade = telling(), learn.GradeUsable })
		if tt.view != nil {
			p.set(tt.view)
		}
		n.worker.Set(tt.reply)
		asked := n.worker.Votes()
		a := n.chat(tt.body, tt.head...)
		settled(t, log, i+1)
		e := n.get("/v1/weir/requests/"+a.header.Get("X-Request-Id"), 200)
		if want := `"verify":{"outcome":"` + tt.outcome; strings.Contains(e, want) != (tt.outcome != "") || tt.outcome == "" && strings.Contains(e, `"verify"`) {
			t.Errorf("%s: explained by %s", tt.name, e)
		}
		if n.worker.Votes() != asked || log.last().Votes != nil {
			t.Errorf("%s: the worker was asked, record %+v", tt.name, log.last())
		}
	}
}

// Text that is shown already is not asked about, nor what was lost before its end;
// a stream that is held whole is.
func TestVerifiedStreams(t *testing.T) {
	p, log := &pupil{}, &records{}
	n := startStreaming(t, func(o *local.Options) {
		p.view = learn.View{Calibration: *o.Calibration, Calibrated: true, Verifier: telling(), VerifierGrade: learn.GradeUsable, CloudQuality: .95}
		o.Learner, o.Decisions = p, log
	})
	n.setHandoff(`{"verify":{"samples":3},"shadow":0}`, false)
	for i, tt := range []struct {
		max   string
		votes int
		tier  cascade.Tier
	}{{`,"max_tokens":200`, 0, cascade.TierEdge}, {`,"max_tokens":20`, 1, cascade.TierCloud}} {
		n.worker.Set(voting(workertest.Reply{Text: eight, Logprob: -.03}, workertest.Vote{Yes: .01}))
		asked := n.worker.Votes()
		a := n.chat(`,"stream":true` + tt.max)
		settled(t, log, i+1)
		if a.weir.Tier != tt.tier || !a.done || n.worker.Votes()-asked != tt.votes || tt.tier == cascade.TierEdge && a.text != eight {
			t.Errorf("%s: %d votes, %q %+v", tt.max, n.worker.Votes()-asked, a.text, a.weir)
		}
	}
	hangs := make(chan struct{})
	defer close(hangs)
	for i, tt := range []struct {
		name    string
		reply   workertest.Reply
		decided float64 // before the cloud answers
	}{
		{"cut short by the cloud's", workertest.Reply{Text: eight, Logprob: -6, Gate: hangs, GateAt: 2}, 0},
		{"ends before the cloud's begins", workertest.Reply{Text: eight, Logprob: -6}, 2},
	} {
		n.worker.Set(tt.reply)
		n.cloud.Answer(func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil && n.metric("weir_edge_verify_total", "decided") < tt.decided {
				time.Sleep(time.Millisecond)
			}
			cloudtest.Say("from the cloud")(w, r)
		})
		a := n.chat("")
		settled(t, log, 3+i)
		if e := n.get("/v1/weir/requests/"+a.header.Get("X-Request-Id"), 200); a.weir.Tier != cascade.TierCloud || !strings.Contains(e, `"verify":{"outcome":"decided"`) {
			t.Errorf("an answer lost before its end that %s: explained by %s", tt.name, e)
		}
	}
}

// A model server that says nothing of use changes nothing, and what it could not
// say it is not asked again.
func TestVotesThatDoNotCome(t *testing.T) {
	n, _, log := startVerifying(t)
	for i, tt := range []struct {
		name    string
		vote    workertest.Vote
		outcome string
		asked   int
	}{
		{"fails", workertest.Vote{Status: 500}, "error", 1},
		{"is no JSON", workertest.Vote{Says: "<html>"}, "error", 1},
		{"says neither", workertest.Vote{Says: `{"choices":[{"logprobs":{"content":[{"top_logprobs":[{"token":"maybe","logprob":-0.1}]}]}}]}`}, "unread", 1},
		{"is too long", workertest.Vote{Says: strings.Repeat("x", 2<<20)}, "error", 1},
		{"refuses probabilities", workertest.Vote{Status: 400, Param: "top_logprobs"}, "unsupported", 1},
		{"gives samples, which the table is not for", workertest.Vote{Yes: 1}, "not_viable", 0},
	} {
		n.worker.Set(voting(letsOver, tt.vote))
		asked := n.worker.Votes()
		a := n.chat("")
		settled(t, log, i+1)
		if a.weir.Tier != cascade.TierCloud || a.weir.Reason != cascade.ReasonLowConfidence || log.last().Votes != nil || n.worker.Votes()-asked != tt.asked {
			t.Errorf("%s: %+v after %d questions", tt.name, a.weir, n.worker.Votes()-asked)
		}
		if e := n.get("/v1/weir/requests/"+a.header.Get("X-Request-Id"), 200); !strings.Contains(e, `"verify":{"outcome":"`+tt.outcome) {
			t.Errorf("%s: explained by %s", tt.name, e)
		}
	}
}

// A model server whose votes do not come in time is left alone after three of them.
func TestVotesThatComeTooLate(t *testing.T) {
	p, log := &pupil{}, &records{}
	n := startNode(t, func(o *local.Options) {
		p.view = learn.View{Calibration: *o.Calibration, Calibrated: true}
		o.Learner, o.Decisions, o.VoteTime = p, log, 50*time.Millisecond
	})
	n.verifies(p)
	hangs := make(chan struct{})
	defer close(hangs)
	n.worker.Set(voting(letsOver, workertest.Vote{Gate: hangs}))
	for i, tt := range []struct {
		outcome  string
		attempts int // with the question, which may be called off before the worker reads it
	}{{"timeout", 3}, {"timeout", 3}, {"timeout", 3}, {"slow", 2}} {
		a := n.chat("")
		settled(t, log, i+1)
		if a.weir.Tier != cascade.TierCloud || a.weir.Reason != cascade.ReasonLowConfidence || a.weir.Attempts != tt.attempts {
			t.Errorf("%d: %+v", i, a.weir)
		}
		if e := n.get("/v1/weir/requests/"+a.header.Get("X-Request-Id"), 200); !strings.Contains(e, `"verify":{"outcome":"`+tt.outcome) {
			t.Errorf("%d: explained by %s", i, e)
		}
	}
}

// Where votes have lately taken longer than there is time nobody is asked.
func TestVotesTakeTime(t *testing.T) {
	p, log := &pupil{}, &records{}
	var ahead atomic.Int64
	n := startNode(t, func(o *local.Options) {
		p.view = learn.View{Calibration: *o.Calibration, Calibrated: true, Verifier: telling(), VerifierGrade: learn.GradeUsable, CloudQuality: .95}
		o.Learner, o.Decisions = p, log
		o.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	})
	n.setPolicy(2, tenants.Policy{Spec: json.RawMessage(`{"verify":{"samples":3},"shadow":0}`)})
	n.worker.Set(voting(keeps, workertest.Vote{Yes: 1, Before: func() { ahead.Add(int64(10 * time.Minute)) }}))
	n.chat("")
	asked := n.worker.Votes()
	a := n.chat("", "X-Weir-Deadline-Ms", "300000")
	settled(t, log, 2)
	if e := n.get("/v1/weir/requests/"+a.header.Get("X-Request-Id"), 200); asked != 1 || n.worker.Votes() != asked || !strings.Contains(e, `"verify":{"outcome":"deadline"`) {
		t.Errorf("asked %d times, explained by %s", n.worker.Votes(), e)
	}
}

// With votes a request has made its third attempt when the cloud is asked: a
// gateway that breaks is not replaced, and the edge's answer stands.
func TestVotesCountAsAnAttempt(t *testing.T) {
	n, _, log := startVerifying(t)
	n.worker.Set(voting(keeps, workertest.Vote{Yes: 0}))
	n.cloud.Answer(func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) })
	a := n.chat("")
	settled(t, log, 1)
	if a.weir.Tier != cascade.TierEdge || a.weir.Attempts != 3 || len(n.cloud.Seen()) != 1 {
		t.Errorf("%d calls, %+v", len(n.cloud.Seen()), a.weir)
	}
}

// A client that leaves while votes are waited for ends the request.
func TestClientLeavesBeforeTheVotes(t *testing.T) {
	n, _, log := startVerifying(t)
	hangs := make(chan struct{})
	defer close(hangs)
	n.worker.Set(voting(keeps, workertest.Vote{Gate: hangs}))
	n.abandon(func() bool { return n.worker.Votes() == 1 })
	settled(t, log, 1)
	if len(n.cloud.Seen()) != 0 || len(n.rows.all()) != 2 {
		t.Errorf("the cloud was asked for a client that has left, or rows are lacking: %+v", n.rows.all())
	}
}

// Votes for a label do not run beside users' requests: they wait, and a label has
// none where the model is busy for long.
func TestLabelsGiveWayToRequests(t *testing.T) {
	n, p, log := startVerifying(t)
	p.set(func(v *learn.View) { v.Verifier, v.VerifierGrade = nil, learn.GradeUnknown })
	n.worker.Set(unsure)
	n.chat("")
	settled(t, log, 1)
	eventually(t, "a lesson", func() bool { p.mu.Lock(); defer p.mu.Unlock(); return len(p.escalated) == 1 })
	poll := p.escalated[0].Poll
	held := make(chan struct{})
	n.worker.Set(workertest.Reply{Text: "from the edge", Logprob: -.06, Gate: held, Vote: workertest.Vote{Yes: .7}})
	answered := make(chan struct{})
	seen := len(n.worker.Seen())
	go func() { defer close(answered); n.chat("", "X-Weir-Mode", "edge-only") }()
	eventually(t, "a request at the model", func() bool { return len(n.worker.Seen()) > seen })
	gone, leave := context.WithCancel(t.Context())
	leave()
	if v := poll(gone); v != nil || n.worker.Votes() != 0 || n.metric("weir_edge_verify_total", "busy") != 1 {
		t.Errorf("%+v beside a request", v)
	}
	close(held)
	<-answered
	if v := poll(t.Context()); v == nil || n.worker.Votes() != 1 {
		t.Errorf("%+v after it", v)
	}
}

// Labels get votes off the request's path, whether the table is usable or not yet,
// but for requests that have been asked enough.
func TestLabelsGetVotes(t *testing.T) {
	n, p, log := startVerifying(t)
	p.set(func(v *learn.View) { v.Verifier, v.VerifierGrade = nil, learn.GradeUnknown })
	for i, tt := range []struct {
		reply workertest.Reply
		pairs *[]learning.Pair
	}{{voting(unsure, workertest.Vote{Yes: .3}), &p.escalated}, {voting(confident, workertest.Vote{Yes: .7}), &p.shadowed}} {
		n.worker.Set(tt.reply)
		a := n.chat("")
		settled(t, log, i+1)
		eventually(t, "a lesson", func() bool { p.mu.Lock(); defer p.mu.Unlock(); return len(*tt.pairs) == 1 })
		pair := (*tt.pairs)[0]
		if log.last().Votes != nil || a.weir.EdgeTokens > 4 || n.worker.Votes() != i || pair.Poll == nil {
			t.Fatalf("%d: asked on the request's path, or not at all: %+v", i, pair)
		}
		if v := pair.Poll(t.Context()); v == nil || *v != (verifier.Votes{Yes: 1 + i, Of: 3}) {
			t.Errorf("%d: %+v", i, v)
		}
		if row := n.rows.all()[len(n.rows.all())-1]; row.ErrorCode != "verify" || row.OperationID != pair.Operation {
			t.Errorf("%d: row %+v", i, row)
		}
	}
	n.worker.Set(confident)
	n.chat("", "X-Weir-Privacy", "local-only")
	settled(t, log, 3)
	if len(p.shadowed) != 1 || n.worker.Votes() != 2 || n.metric("weir_edge_verify_total", "learned") != 2 {
		t.Errorf("%d votes, %d shadows", n.worker.Votes(), len(p.shadowed))
	}
}
