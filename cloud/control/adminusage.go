package control

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // days of any zone, on systems that have no zones

	"github.com/weirhq/weir/cloud/control/openapi"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/report"
	"github.com/weirhq/weir/tenants/store"
)

// usageAnswer is what usage queries answer: sums over the whole selection, in
// groups, and a page of its attempts, newest first.
type usageAnswer struct {
	From   time.Time             `json:"from"`
	To     time.Time             `json:"to" doc:"excluded"`
	Totals report.Sums           `json:"totals"`
	Groups []report.Group        `json:"groups"`
	Rows   []tenants.UsageRecord `json:"rows"`
	Next   string                `json:"next,omitempty" doc:"value of after for the next page of rows"`
}

func usageRoutes() []adminRoute {
	q := func(name, doc string) openapi.Param { return openapi.Param{Name: name, In: "query", Doc: doc} }
	which := []openapi.Param{
		paramTenant, q("key_id", ""), q("model", ""), {Name: "tier", In: "query", Enum: []string{"edge", "cloud"}}, q("class", ""), q("outcome", ""),
		{Name: "device_id", In: "query", Format: "uuid"}, {Name: "operation_id", In: "query", Format: "uuid", Doc: "the attempts of one request"},
		{Name: "from", In: "query", Format: "date-time", Doc: "default: a day ago"}, {Name: "to", In: "query", Format: "date-time", Doc: "excluded"},
	}
	grouped := append(slices.Clone(which),
		q("group_by", "some of "+strings.Join(report.Dimensions, ", ")+", with commas between; default tier,model"),
		openapi.Param{Name: "bucket", In: "query", Enum: report.Buckets, Doc: "makes a series"},
		q("tz", "zone in which days and months begin, such as Europe/Paris; default UTC"))
	paged := append(slices.Clone(grouped), paramAfter, openapi.Param{Name: "limit", In: "query", Type: "integer", Doc: "attempts, 0 to 1000, default 100"})
	return []adminRoute{
		view("/usage", read, "getUsage", "Sum up usage and list its attempts, newest first.", paged, getUsage),
		{method: http.MethodGet, path: "/usage.csv", access: read, id: "exportUsage", summary: "Export every attempt of a selection, newest first.",
			params: which, status: http.StatusOK, outType: "text/csv", serve: exportAttempts},
		{method: http.MethodGet, path: "/usage-sums.csv", access: read, id: "exportSums", summary: "Export sums of usage.",
			params: grouped, status: http.StatusOK, outType: "text/csv", serve: exportSums},
	}
}

// selection reads which attempts a call is about. Times end on minutes when
// the caller gives none, which rollups answer at once.
func (a *adminCall) selection(now time.Time) (s report.Selection, err error) {
	s = report.Selection{KeyID: a.query["key_id"], Model: a.query["model"], Tier: tenants.Tier(a.query["tier"]), Class: a.query["class"],
		Outcome: tenants.Outcome(a.query["outcome"]), DeviceID: a.query["device_id"], OperationID: a.query["operation_id"],
		From: now.Add(-24 * time.Hour).Truncate(time.Minute), To: now.Add(time.Hour).Truncate(time.Minute)} // clocks of devices may run ahead
	if s.TenantID, err = a.tenant(a.query["tenant_id"]); err != nil {
		return s, err
	}
	for name, dst := range map[string]*time.Time{"from": &s.From, "to": &s.To} {
		if err := a.when(name, dst); err != nil {
			return s, err
		}
	}
	if !s.From.Before(s.To) {
		return s, openai.BadRequest("from", openai.CodeInvalidValue, "from: want a time before to")
	}
	return s, nil
}

func (a *adminCall) grouping() (g report.Grouping, err error) {
	g = report.Grouping{By: []string{"tier", "model"}, Bucket: a.query["bucket"]}
	if by, given := a.query["group_by"]; given {
		g.By = nil
		for _, d := range strings.Split(by, ",") {
			if d == "" {
				continue
			}
			if !slices.Contains(report.Dimensions, d) || slices.Contains(g.By, d) {
				return g, openai.BadRequest("group_by", openai.CodeInvalidValue, "group_by: want some of %s, each once", strings.Join(report.Dimensions, ", "))
			}
			g.By = append(g.By, d)
		}
	}
	if name := a.query["tz"]; name != "" {
		if g.Zone, err = time.LoadLocation(name); err != nil || name == "Local" {
			return g, openai.BadRequest("tz", openai.CodeInvalidValue, "tz: want the name of a time zone such as Europe/Paris")
		}
	}
	return g, nil
}

func getUsage(a *adminCall) (usageAnswer, error) {
	now := time.Now()
	var u usageAnswer
	sel, err := a.selection(now)
	if err != nil {
		return u, err
	}
	g, err := a.grouping()
	if err != nil {
		return u, err
	}
	n, err := limit(a.query["limit"], 0)
	if err != nil {
		return u, err
	}
	u, err = sumUp(a.ctx, a.tx.DB(), sel, g, now)
	if err != nil || n == 0 {
		return u, err
	}
	u.Rows, u.Next, err = report.Attempts(a.ctx, a.tx.DB(), sel, a.query["after"], n)
	return u, err
}

func sumUp(ctx context.Context, db report.DB, sel report.Selection, g report.Grouping, now time.Time) (usageAnswer, error) {
	u := usageAnswer{From: sel.From, To: sel.To, Rows: []tenants.UsageRecord{}}
	groups, err := report.Sum(ctx, db, sel, g, now)
	if err != nil {
		return u, err
	}
	for i := range groups {
		u.Totals.Add(groups[i].Sums)
	}
	u.Groups = groups
	if len(g.By) == 0 && g.Bucket == "" {
		u.Groups = []report.Group{}
	}
	return u, nil
}

func exportAttempts(c *Control, a *adminCall) error {
	sel, err := a.selection(time.Now())
	if err != nil {
		return err
	}
	return a.brokeOff(c, "usage", c.exportRows(a.ctx, a.actor(), sel, func() io.Writer { return a.startCSV("usage.csv") }))
}

func exportSums(c *Control, a *adminCall) error {
	now := time.Now()
	sel, err := a.selection(now)
	if err != nil {
		return err
	}
	g, err := a.grouping()
	if err != nil {
		return err
	}
	return c.store.View(a.ctx, a.actor(), func(tx *store.Store) error {
		groups, err := report.Sum(a.ctx, tx.DB(), sel, g, now)
		if err != nil {
			return err
		}
		out := report.NewCSV(a.startCSV("usage-sums.csv"))
		_ = out.Groups(groups)
		_ = out.Flush() // the client may be gone
		return nil
	})
}

func (a *adminCall) startCSV(name string) io.Writer {
	h := a.Writer.Header()
	h.Set("Content-Type", "text/csv; charset=utf-8")
	h.Set("Content-Disposition", `attachment; filename="`+name+`"`)
	a.Writer.WriteHeader(http.StatusOK)
	return a.Writer
}
