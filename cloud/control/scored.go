package control

import (
	"encoding/csv"
	"net/http"
	"strconv"
	"time"

	"github.com/weirhq/weir/cloud/control/openapi"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants/store"
)

func scoredRoute() adminRoute {
	return adminRoute{method: http.MethodGet, path: "/answers.csv", access: platform, id: "exportAnswers",
		summary: "Export the scored answers of equal pools, each with the propensity of its choice, oldest first.",
		params: []openapi.Param{{Name: "model", In: "query", Doc: "of one model only"},
			{Name: "from", In: "query", Format: "date-time", Doc: "default: a week ago"}, {Name: "to", In: "query", Format: "date-time", Doc: "excluded"}},
		status: http.StatusOK, outType: "text/csv", serve: exportAnswers}
}

var scoredHeader = []string{"answered_at", "tenant_id", "operation_id", "model", "class", "pool", "propensity", "score", "kind"}

func scoredCells(a *store.Scored) []string {
	decimal := func(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }
	return []string{a.At.Format(time.RFC3339Nano), a.TenantID, a.OperationID, a.Model, a.Class, a.Pool, decimal(a.Propensity), decimal(a.Score), a.Kind}
}

func exportAnswers(c *Control, a *adminCall) error {
	now := time.Now()
	in := store.ScoredIn{From: now.AddDate(0, 0, -7), To: now.Add(time.Hour), Model: a.query["model"]} // clocks of gateways may run ahead
	for name, dst := range map[string]*time.Time{"from": &in.From, "to": &in.To} {
		if err := a.when(name, dst); err != nil {
			return err
		}
	}
	if !in.From.Before(in.To) {
		return openai.BadRequest("from", openai.CodeInvalidValue, "from: want a time before to")
	}
	err := c.store.View(a.ctx, a.actor(), func(tx *store.Store) error {
		var out *csv.Writer
		for after := (store.Scored{}); ; {
			page, err := tx.ScoredAnswers(a.ctx, in, after, maxList)
			if err != nil {
				return err
			}
			if out == nil {
				out = csv.NewWriter(a.startCSV("answers.csv"))
				_ = out.Write(scoredHeader) // errors of the writer stay until Flush
			}
			for i := range page {
				_ = out.Write(scoredCells(&page[i]))
			}
			if out.Flush(); out.Error() != nil || len(page) < maxList {
				return out.Error()
			}
			after = page[len(page)-1]
		}
	})
	return a.brokeOff(c, "answers", err)
}

// brokeOff returns the error of an export that has not begun, and cuts one that
// has: half a file must not look like a whole one.
func (a *adminCall) brokeOff(c *Control, what string, err error) error {
	if err != nil && a.Writer.Written() {
		c.o.Log.Warn("an export broke off", "of", what, "error", err)
		panic(http.ErrAbortHandler)
	}
	return err
}
