package gateway

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
)

// Answer is an answer that may be scored.
type Answer struct {
	Operation, TenantID string
	Device              string // "": straight from an application
	Model               string // as asked; "": a score moves no arm
	Class, Pool         string
	Propensity          float64 // with which the pool was chosen; 0: it stood in for another
	At                  time.Time
	// Checked says that its request asked for a form, and Broken that the answer
	// broke it.
	Checked, Broken bool
}

// Score is what somebody thinks of an answer.
type Score struct {
	Operation, TenantID string
	Device              string  // only of this device's requests; "": of any of the tenant's
	Value               float64 // 0 to 1
	// Known is the answer, where this process remembers it.
	Known *Answer
	// Noted are the names under which the ledger has answers of equal pools. It does
	// not say who chose them: without a note such an answer is unknown.
	Noted []string
}

// ErrUnknownAnswer says that a score is of no answer of the tenant, or device.
var ErrUnknownAnswer = errors.New("no such answer")

// Feedback keeps answers of equal pools and their scores for all gateways.
type Feedback interface {
	// Answered notes an answer. It must not block.
	Answered(Answer)
	// Score keeps a score in place of an earlier one. The error wraps
	// ErrUnknownAnswer where there is no such answer.
	Score(ctx context.Context, s Score) error
}

// Bounds of scores. A tenant's go through this gateway at a pace.
const (
	scoreTime       = 3 * time.Second
	scoresPerSecond = 20
	mostScores      = 200
)

// putFeedback answers PUT /v1/weir/requests/{id}/feedback.
func (g *Gateway) putFeedback(x *exchange) {
	body, err := x.score()
	if err == nil {
		g.meter.scored("kept")
		x.answer(body)
		return
	}
	e := openai.AsError(err)
	switch {
	case e.Status == http.StatusNotFound:
		g.meter.scored("unknown")
	case e.Status == http.StatusGone:
		g.meter.scored("late")
	case e.Status >= http.StatusInternalServerError:
		g.meter.scored("failed")
	default:
		g.meter.scored("refused")
	}
	x.refuse(e)
}

// score keeps a score, and returns what was kept.
func (x *exchange) score() (f contract.Feedback, err error) {
	g, id := x.g, x.gin.Param("id")
	if f, err = contract.ReadFeedback(x.gin.Request); err != nil {
		return f, err
	}
	if err := contract.CheckScored(id, time.Now()); err != nil {
		return f, err
	}
	if g.opts.Feedback == nil {
		return f, openai.Unavailable("feedback_unavailable", time.Second, "scores are not kept here")
	}
	if !allowanceOf(&g.scores, x.who.TenantID, scoresPerSecond, mostScores).Spend(time.Now()) {
		return f, &openai.Error{Status: http.StatusTooManyRequests, Type: openai.TypeRateLimit, Code: "rate_limited", RetryAfter: time.Second,
			Message: "scores come faster than 20 a second: try again shortly"}
	}
	s := Score{Operation: id, TenantID: x.who.TenantID, Device: x.who.Device, Value: f.Score, Known: g.explain.answer(id, x.who.TenantID), Noted: g.noted()}
	ctx, cancel := context.WithTimeout(x.ctx, scoreTime)
	defer cancel()
	switch err := g.opts.Feedback.Score(ctx, s); {
	case errors.Is(err, ErrUnknownAnswer):
		return f, contract.UnknownRequest()
	case err != nil:
		e := openai.Unavailable("feedback_unavailable", time.Second, "the score cannot be kept now: try again later")
		e.Cause = err
		return f, e
	}
	return f, nil
}

// noted are the equal pools, and how their instances call them.
func (g *Gateway) noted() []string {
	var names []string
	for pool := range g.equals {
		names = append(names, pool)
	}
	for _, s := range g.opts.Pool.Status() {
		if g.equals[s.Model] {
			names = append(names, s.Served)
		}
	}
	return names
}

// equalsOf are the pools that are equals of others for some model.
func equalsOf(models map[string]Model) map[string]bool {
	all := map[string]bool{}
	for _, m := range models {
		if m.Cascade == nil || len(m.Cascade.Equals()) < 2 {
			continue
		}
		for _, pool := range m.Cascade.Equals() {
			all[pool] = true
		}
	}
	return all
}

// answer is what is remembered of a tenant's request that got a whole answer from a
// model without equal pools; those with some are noted.
func (e *explanations) answer(id, tenant string) *Answer {
	x := e.get(id, tenant)
	if x == nil || x.Choice != nil || x.Outcome != tenants.OutcomeOK {
		return nil
	}
	pool := x.Pool
	for _, t := range x.Attempts { // a cascade's last good one answered
		if t.Outcome == tenants.OutcomeOK {
			pool = t.Pool
		}
	}
	return &Answer{Operation: id, TenantID: tenant, Device: x.Device, Class: x.Class, Pool: pool, At: x.Began}
}
