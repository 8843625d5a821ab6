package control

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/weirhq/weir/cascade/tiers"
	"github.com/weirhq/weir/cloud/cascading"
	"github.com/weirhq/weir/cloud/control/openapi"
	"github.com/weirhq/weir/cloud/gateway"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/tenants/store"
)

var _ gateway.Feedback = (*Control)(nil)

const (
	// maxAnswers wait while the database is away; those beyond can be scored by
	// nobody, and nothing else is lost with them.
	maxAnswers  = 8192
	noteAnswers = time.Second
	noteAtOnce  = 1024
	// openLonger is for how long answers are kept beyond the time for scores.
	openLonger   = 24 * time.Hour
	sweepTimeout = 15 * time.Second
)

// armMemory: what labels beyond the window would weigh is less than 1 %, and no
// tenant gives more than a tenth of them.
var armMemory = store.Memory{Decay: tiers.Decay, Window: 5000, Own: 500}

// answers are those on their way to the database.
type answers struct {
	flushing sync.Mutex // one at a time, so that who scores finds what was noted before

	mu    sync.Mutex
	waits []gateway.Answer
	lost  int // since it was last told
}

// add takes answers, at the front those that have waited before.
func (q *answers) add(again bool, more ...gateway.Answer) {
	q.mu.Lock()
	defer q.mu.Unlock()
	room := min(len(more), max(0, maxAnswers-len(q.waits)))
	q.lost += len(more) - room
	if again {
		q.waits = append(more[:room:room], q.waits...)
	} else {
		q.waits = append(q.waits, more[:room]...)
	}
}

func (q *answers) take() (waits []gateway.Answer, lost int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	waits, lost = q.waits, q.lost
	q.waits, q.lost = nil, 0
	return waits, lost
}

// Answered implements gateway.Feedback. It does not wait for the database.
func (c *Control) Answered(a gateway.Answer) { c.answers.add(false, a) }

// keepAnswers writes answers until ctx ends, and then what is left.
func (c *Control) keepAnswers(ctx context.Context) {
	for sleep(ctx, noteAnswers) {
		if err := c.flushAnswers(ctx); err != nil && ctx.Err() == nil && c.DatabaseUp() {
			c.o.Log.Warn("answers were not noted, will try again", "error", err)
		}
	}
	_ = c.flushAnswers(context.WithoutCancel(ctx)) // nobody is left to try again
}

// flushAnswers writes what waits. What is written does not wait again, and one
// that the database refuses keeps nobody up.
func (c *Control) flushAnswers(ctx context.Context) error {
	c.answers.flushing.Lock()
	defer c.answers.flushing.Unlock()
	waits, lost := c.answers.take()
	if lost > 0 {
		c.o.Log.Warn("answers cannot be scored: too many waited for the database", "answers", lost)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	for n := noteAtOnce; len(waits) > 0; {
		n = min(n, len(waits))
		rows := make([]store.Answer, n)
		for i := range rows {
			rows[i] = stored(&waits[i])
		}
		switch err := c.store.NoteAnswers(ctx, rows, armMemory); {
		case errors.Is(err, store.ErrRefused) && n > 1:
			n = 1 // to find which
			continue
		case errors.Is(err, store.ErrRefused):
			c.o.Log.Error("an answer cannot be scored", "operation", waits[0].Operation, "tenant", waits[0].TenantID, "error", err)
		case err != nil:
			c.answers.add(true, waits...)
			return err
		}
		waits = waits[n:]
	}
	return nil
}

func stored(a *gateway.Answer) store.Answer {
	row := store.Answer{TenantID: a.TenantID, OperationID: a.Operation, DeviceID: a.Device, Model: a.Model, Class: a.Class, Pool: a.Pool,
		Propensity: a.Propensity, At: a.At}
	if a.Checked {
		held := 1.0
		if a.Broken {
			held = 0
		}
		row.Form = &held
	}
	return row
}

// Score implements gateway.Feedback.
func (c *Control) Score(ctx context.Context, s gateway.Score) error {
	if err := c.flushAnswers(ctx); err != nil {
		return err
	}
	l := store.Label{TenantID: s.TenantID, OperationID: s.Operation, DeviceID: s.Device, Score: s.Value, Noted: s.Noted}
	if s.Known != nil {
		known := stored(s.Known)
		l.Known = &known
	}
	err := c.store.PutLabel(ctx, l, armMemory)
	if errors.Is(err, store.ErrNotFound) {
		return gateway.ErrUnknownAnswer
	}
	return err
}

// Arms are what the equal pools of each model have earned over all gateways.
func (c *Control) Arms(ctx context.Context) (map[string]cascading.Arms, error) {
	all, err := c.store.Arms(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string]cascading.Arms{}
	for _, a := range all {
		if out[a.Model] == nil {
			out[a.Model] = cascading.Arms{}
		}
		out[a.Model][cascading.Cell{Class: a.Class, Pool: a.Pool}] = tiers.Arm{Right: a.Good, Wrong: a.Bad}
	}
	return out, nil
}

// sweepAnswers drops what can be scored no more, and old labels.
func (c *Control) sweepAnswers(ctx context.Context, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	return c.store.SweepAnswers(ctx, now.Add(-contract.FeedbackLife-openLonger), now.Add(-c.o.Retention))
}

// shownArm is an arm for operators.
type shownArm struct {
	Model     string    `json:"model" doc:"as applications ask for it"`
	Class     string    `json:"class" doc:"SLO class; empty: none"`
	Pool      string    `json:"pool"`
	Mean      float64   `json:"mean" doc:"expected quality, 0 to 1"`
	Low       float64   `json:"low" doc:"below it the quality lies with a probability of 5 %"`
	High      float64   `json:"high" doc:"above it, with 5 %"`
	Labels    int       `json:"labels" doc:"that count, at most 5000"`
	Weight    float64   `json:"weight" doc:"of the labels, old ones fading"`
	UpdatedAt time.Time `json:"updated_at"`
}

func armRoutes() []adminRoute {
	return []adminRoute{
		view("/arms", platform, "listArms", "Show what the answers of equal pools have earned, by model, class and pool.",
			[]openapi.Param{{Name: "model", In: "query", Doc: "of one model only"}}, listArms),
		scoredRoute(),
	}
}

func listArms(a *adminCall) (list[shownArm], error) {
	l := list[shownArm]{Object: "list", Data: []shownArm{}}
	all, err := a.tx.Arms(a.ctx)
	for _, arm := range all {
		if m := a.query["model"]; m != "" && m != arm.Model {
			continue
		}
		post := tiers.Arm{Right: arm.Good, Wrong: arm.Bad}
		low, high := post.Interval(.9)
		l.Data = append(l.Data, shownArm{Model: arm.Model, Class: arm.Class, Pool: arm.Pool, Mean: post.Mean(), Low: low, High: high,
			Labels: arm.Labels, Weight: arm.Good + arm.Bad, UpdatedAt: arm.UpdatedAt})
	}
	return l, err
}
