package control

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"github.com/weirhq/weir/cloud/gateway"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants/quota"
	"github.com/weirhq/weir/tenants/report"
	"github.com/weirhq/weir/tenants/store"
)

// ownUsage answers GET /v1/usage: a tenant's use, and where its limits stand
// for the key that asks.
type ownUsage struct {
	usageAnswer
	CostUSD float64           `json:"cost_usd"` // of the selection
	Limits  []report.LimitUse `json:"limits"`
}

// Usage answers GET /v1/usage. Its transaction sees nothing of other tenants.
func (c *Control) Usage(ctx context.Context, q gateway.UsageQuery) (any, error) {
	now := time.Now()
	sel := report.Selection{TenantID: q.TenantID, KeyID: q.KeyID, From: q.From.UTC(), To: q.To.UTC()}
	who := store.Actor{ID: "key", TenantID: q.TenantID}
	if q.CSV {
		return gateway.Export(func(ctx context.Context, start func() io.Writer) error {
			return c.exportRows(ctx, who, sel, start)
		}), nil
	}
	var u ownUsage
	err := c.store.View(ctx, who, func(tx *store.Store) (err error) {
		if u.usageAnswer, err = sumUp(ctx, tx.DB(), sel, report.Grouping{By: []string{"tier", "model"}}, now); err != nil {
			return err
		}
		if u.Rows, u.Next, err = report.Attempts(ctx, tx.DB(), sel, q.After, q.Limit); err != nil {
			return err
		}
		u.Limits, err = c.limitsOf(ctx, tx, q, now)
		return err
	})
	if errors.Is(err, report.ErrBadCursor) {
		return nil, openai.BadRequest("after", openai.CodeInvalidValue, "after is not a cursor of this list")
	}
	u.CostUSD = float64(u.Totals.CostNanoUSD) / 1e9
	return u, err
}

// limitsOf tells budgets by the ledger, rates and slots by this gateway, the
// classes' allowances of escalations among them.
func (c *Control) limitsOf(ctx context.Context, tx *store.Store, q gateway.UsageQuery, now time.Time) ([]report.LimitUse, error) {
	x := c.Index()
	if x == nil {
		return []report.LimitUse{}, nil
	}
	snap := x.Snapshot()
	limits := slices.Clone(snap.Limits)
	for i := range snap.Classes {
		if l, ok := snap.Classes[i].Allowance(q.TenantID); ok {
			limits = append(limits, l)
		}
	}
	all, err := report.Limits(ctx, tx.DB(), q.TenantID, q.Caller, limits, now)
	if err != nil || q.Live == nil {
		return all, err
	}
	type scope struct{ model, class string }
	live := map[scope][]quota.Status{}
	for i := range all {
		l := &all[i]
		s := scope{l.Model, l.Class}
		if _, known := live[s]; !known {
			live[s] = q.Live(s.model, s.class)
		}
		for _, st := range live[s] {
			if st.Limit.ID == l.ID && (st.Limit.Window == quota.Minute || st.Limit.Window == quota.AtOnce) {
				l.Now(st.Remaining, now.Add(st.Reset).UTC())
			}
		}
	}
	return all, nil
}

// exportRows writes every attempt of a selection, a page at a time.
func (c *Control) exportRows(ctx context.Context, who store.Actor, sel report.Selection, start func() io.Writer) error {
	return c.store.View(ctx, who, func(tx *store.Store) error {
		var out *report.CSV
		for after := ""; ; {
			recs, next, err := report.Attempts(ctx, tx.DB(), sel, after, report.MaxAttempts)
			if err != nil {
				return err
			}
			if out == nil {
				out = report.NewCSV(start())
				_ = out.AttemptHeader() // errors of the writer stay until Flush
			}
			for _, r := range recs {
				_ = out.Attempt(r)
			}
			if err := out.Flush(); err != nil || next == "" {
				return err
			}
			after = next
		}
	})
}
