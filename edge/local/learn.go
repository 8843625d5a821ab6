package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/journal"
	"github.com/weirhq/weir/cascade/learn"
	"github.com/weirhq/weir/edge/learning"
	"github.com/weirhq/weir/edge/uplink"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/jsonscan"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
)

// Learner knows how answers are calibrated, and learns from requests on which
// both tiers have answered.
type Learner interface {
	// View is what is known of a class.
	View(cell string) *learn.View
	// Draw says with which probability a kept answer is also asked of the cloud,
	// and whether this one is; see learning.Learner.
	Draw(operation, cell string, share *float64, bound int64) (propensity float64, chosen bool)
	// Shadow asks the cloud in the background.
	Shadow(p learning.Pair, bound int64, ask learning.Ask)
	// Escalated compares the edge's draft with the answer that the client got.
	Escalated(p learning.Pair, cloud learning.Answer, bound int64)
}

// fixed is the Learner of a node that learns nothing.
type fixed struct{ view *learn.View }

func newFixed(cal *cascade.Calibration) fixed {
	t := learn.NewTable(learn.DefaultOptions(), "", cascade.FeatureProduct)
	v := t.View("")
	if cal != nil {
		v.Calibration, v.Calibrated = *cal, true
	}
	return fixed{&v}
}

func (f fixed) View(string) *learn.View                            { return f.view }
func (fixed) Draw(string, string, *float64, int64) (float64, bool) { return 0, false }
func (fixed) Shadow(learning.Pair, int64, learning.Ask)            {}
func (fixed) Escalated(learning.Pair, learning.Answer, int64)      {}

// calibration returns how answers of the call's class are judged now; nil where
// that rests on no labels, or belongs to another model than the one that runs, or
// where labels have shown that the signal finds no wrong answers: the class's
// means then decide, for all its answers alike.
func (s *Server) calibration(c *call) *cascade.Calibration {
	v := s.opt.Learner.View(cell(c.class))
	health, _ := s.opt.Worker.Health()
	switch {
	case !v.Calibrated || v.Calibration.Bind(health.Fingerprint.Weights) != nil:
		return nil
	case v.Grade == learn.GradeUnusable:
		mean := cascade.Judge(&c.ask, v.EdgeQuality, true, false, &c.policy, &c.node)
		c.policy.KeepUnusable = !mean.Wanted
		return nil
	}
	return &v.Calibration
}

// features are the numbers of the local answer that calibrations read; nil
// where one is missing.
func (c *call) features(s *Server) []float64 {
	v := s.opt.Learner.View(cell(c.class))
	var x []float64
	for _, t := range v.Calibration.Terms {
		f, ok := t.Feature.Value(&c.draft.Signals)
		if !ok || !c.draft.Signals.Usable || math.IsNaN(f) || math.IsInf(f, 0) {
			return nil
		}
		x = append(x, f)
	}
	return x
}

// hear collects the text of the cloud's stream, a JSON string or nil, while there
// is a draft to compare it with, and notes whether it ended by itself.
func (c *call) hear(text, finish []byte) {
	c.heardAll = c.heardAll || string(finish) == `"`+openai.FinishStop+`"`
	if text != nil && c.draft != nil && c.judged && len(c.heard) < contract.MaxDraftBytes {
		c.heard, _ = jsonscan.AppendText(c.heard, text) // what is no string adds nothing
	}
}

// maxShadow bounds the body of a request that is kept for a shadow call, bytes.
const maxShadow = 64 << 10

// lesson fills in with which probability a label of the decision r will be seen,
// and returns what is to be done for one once r is in the log.
func (s *Server) lesson(c *call, r *journal.Record) (teach func()) {
	if !r.Judged || r.Features == nil || r.Model == "" || c.opt.Privacy.Local() || c.outcome != tenants.OutcomeOK || c.draft.Finish != openai.FinishStop {
		return func() {}
	}
	p := learning.Pair{Operation: c.op, Cell: r.Cell, Key: c.KeyID, Model: r.Model, Features: r.Features, Answer: cascade.AnswerText(c.draft.Text)}
	p.Votes, p.Poll = c.vote.Votes, s.pollFor(c)
	if c.result.Tier == cascade.TierCloud {
		if !c.heardAll || len(c.heard) == 0 || len(c.heard) >= contract.MaxDraftBytes {
			return func() {} // an answer that was cut says nothing about a whole one
		}
		r.Propensity = learn.Propensity(true, 0)
		return func() {
			s.opt.Learner.Escalated(p, learning.Answer{Text: cascade.AnswerText(string(c.heard)), Took: c.cloudTime}, c.node.CloudCost)
		}
	}
	if !s.explorable(c) {
		return func() {}
	}
	r.Propensity, r.Shadow = s.opt.Learner.Draw(c.op, r.Cell, c.settings().Shadow, c.node.CloudCost)
	if !r.Shadow {
		return func() {}
	}
	p.Propensity = r.Propensity
	return func() { s.opt.Learner.Shadow(p, c.node.CloudCost, s.shadow(c)) }
}

// explorable reports whether a kept answer may be shown to the cloud for a
// label: never one that a limit kept here, and none that was not judged sure.
func (s *Server) explorable(c *call) bool {
	return c.verdict.Known && !c.verdict.Wanted && c.plan.Second() == cascade.TierCloud && c.node.Link == cascade.LinkUp && c.bodySize() <= maxShadow
}

func (c *call) bodySize() int {
	n := 0
	for _, v := range c.body {
		n += len(v)
	}
	return n
}

// shadow returns the call for a label: the client's request, not streamed, under
// its operation and key, with the draft's reason "confident", which no
// escalation has. What it costs is the class's to pay.
func (s *Server) shadow(c *call) learning.Ask {
	body := c.body.Clone()
	delete(body, "stream_options")
	body.Set("stream", false)
	body.Set("model", s.cloudModel(c))
	weir := map[string]any{"draft": contract.Draft{Reason: cascade.ReasonConfident, Confidence: c.result.Confidence}}
	if c.opt.SLO != "" {
		weir["slo"] = c.opt.SLO
	}
	body.Set("weir", weir)
	h := http.Header{"Content-Type": {"application/json"}, contract.HeaderOperation: {c.op}}
	if c.KeyID != "" {
		h.Set(contract.HeaderKeyID, c.KeyID)
	}
	req := uplink.Request{Method: http.MethodPost, Path: c.kind.Path(), Header: h, Body: body.JSON(), Once: c.settings().Verify != nil}
	rules, bound := c.rules, c.node.CloudCost
	return func(ctx context.Context) (a learning.Answer, err error) {
		if !rules.Reserve(bound, s.opt.Now()) {
			return a, errBudget
		}
		began := s.opt.Now()
		h.Set(contract.HeaderAttempt, contract.NewID()) // sent twice, it is billed once
		defer func() { rules.Charge(bound, a.CostNano, s.opt.Now()) }()
		a, err = s.askWhole(ctx, req, bound)
		a.Took = s.opt.Now().Sub(began)
		return a, err
	}
}

// askWhole asks the cloud for a whole answer. What it cost is bound where that is
// not known: the cloud may have made an answer that did not arrive.
func (s *Server) askWhole(ctx context.Context, req uplink.Request, bound int64) (a learning.Answer, err error) {
	resp, err := s.opt.Cloud.Do(ctx, req)
	if errors.Is(err, uplink.ErrDown) {
		return a, err
	}
	a.CostNano = bound
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		a.CostNano = 0
	}
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	if err != nil {
		return a, fmt.Errorf("%w: %w", errCloudSilent, err)
	}
	if resp.StatusCode != http.StatusOK {
		return a, openai.ParseError(resp.StatusCode, raw)
	}
	var weir struct{ Weir *contract.Result }
	if err := json.Unmarshal(raw, &weir); err != nil {
		return a, fmt.Errorf("%w: %w", errCloudSilent, err)
	}
	if weir.Weir != nil {
		a.CostNano = int64(weir.Weir.CostUSD)
	}
	a.Text = cascade.AnswerText(answerText(raw))
	return a, nil
}

// answerText is the text of a whole answer's first choice, "" where there is
// none or where it was cut.
func answerText(raw []byte) string {
	var a struct {
		Choices []struct {
			Message struct{ Content string }
			Text    string
			Finish  string `json:"finish_reason"`
		}
	}
	if json.Unmarshal(raw, &a) != nil || len(a.Choices) == 0 || a.Choices[0].Finish != openai.FinishStop {
		return ""
	}
	return a.Choices[0].Message.Content + a.Choices[0].Text
}
