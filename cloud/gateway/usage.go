package gateway

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/quota"
)

// UsageQuery asks for a tenant's own use.
type UsageQuery struct {
	TenantID string
	Caller   string // id of the key that asks; "": a device's own use
	KeyID    string // "" is all keys of the tenant
	From, To time.Time
	Limit    int    // rows
	After    string // cursor of the page before
	CSV      bool   // want an Export of all rows
	// Live tells where the caller's limits for a model and class stand on this
	// gateway; nil where nothing is limited.
	Live func(model, class string) []quota.Status
}

// UsageReader answers usage queries with a value that marshals to JSON, or
// with an Export where CSV is asked for. An *openai.Error says what is wrong
// with the query.
type UsageReader interface {
	Usage(ctx context.Context, q UsageQuery) (any, error)
}

// Export writes a long answer. It calls start once, when the first part of the
// answer is there.
type Export func(ctx context.Context, start func() io.Writer) error

// limitReader is an Admission that knows where limits stand.
type limitReader interface {
	Limits(id tenants.Identity, model, class string) []quota.Status
}

const (
	// maxUsageRows bounds GET /v1/usage.
	maxUsageRows  = 1000
	usageTimeout  = 10 * time.Second
	exportTimeout = 10 * time.Minute
)

func (g *Gateway) showUsage(x *exchange) {
	q, err := usageQuery(x.gin.Request.URL.Query(), time.Now())
	if err != nil {
		x.refuse(openai.AsError(err))
		return
	}
	q.TenantID, q.Caller = x.who.TenantID, x.who.KeyID
	if l, ok := g.opts.Admission.(limitReader); ok {
		q.Live = func(model, class string) []quota.Status { return l.Limits(x.who.Identity, model, class) }
	}
	if g.opts.Usage == nil {
		x.refuse(openai.Unavailable("usage_unavailable", time.Second, "the usage ledger is not connected"))
		return
	}
	ctx, cancel := context.WithTimeout(x.ctx, usageTimeout)
	defer cancel()
	got, err := g.opts.Usage.Usage(ctx, q)
	if err != nil {
		x.refuse(usageError(err))
		return
	}
	if export, ok := got.(Export); ok {
		x.export(export)
		return
	}
	x.answer(got)
}

func usageError(err error) *openai.Error {
	if e := openai.AsError(err); e.Status < http.StatusInternalServerError {
		return e
	}
	e := openai.Unavailable("usage_unavailable", time.Second, "the usage ledger cannot be read now")
	e.Cause = err
	return e
}

// export streams a CSV file. One that breaks off ends the connection, so that
// half a file does not look like a whole one.
func (x *exchange) export(write Export) {
	ctx, cancel := context.WithTimeout(x.ctx, exportTimeout)
	defer cancel()
	err := write(ctx, func() io.Writer {
		x.wrote = true
		h := x.gin.Writer.Header()
		h.Set("Content-Type", "text/csv; charset=utf-8")
		h.Set("Content-Disposition", `attachment; filename="usage.csv"`)
		x.gin.Writer.WriteHeader(http.StatusOK)
		return x.gin.Writer
	})
	switch {
	case err == nil:
	case x.wrote:
		panic(http.ErrAbortHandler)
	default:
		x.refuse(usageError(err))
	}
}

// usageQuery reads the query string: from and to (RFC 3339; the last day by
// default), key_id, limit, after and format. Default times lie on minutes,
// which sums answer at once.
func usageQuery(v url.Values, now time.Time) (UsageQuery, error) {
	q := UsageQuery{From: now.Add(-24 * time.Hour).Truncate(time.Minute), To: now.Add(time.Minute).Truncate(time.Minute), Limit: 100}
	for name := range v {
		if err := q.set(name, v.Get(name)); err != nil {
			return q, err
		}
	}
	if !q.From.Before(q.To) {
		return q, openai.BadRequest("from", openai.CodeInvalidValue, "from must be before to")
	}
	return q, nil
}

func (q *UsageQuery) set(name, value string) error {
	switch name {
	case "from", "to":
		t, err := time.Parse(time.RFC3339, value)
		if err != nil || t.Year() < 1970 || t.Year() > 9999 {
			return openai.BadRequest(name, openai.CodeInvalidValue, "%s must be a time such as 2026-01-31T00:00:00Z", name)
		}
		if name == "from" {
			q.From = t
		} else {
			q.To = t
		}
	case "key_id", "after":
		if len(value) > 128 {
			return openai.BadRequest(name, openai.CodeInvalidValue, "%s is too long", name)
		}
		if name == "key_id" {
			q.KeyID = value
		} else {
			q.After = value
		}
	case "limit":
		n, err := strconv.Atoi(value)
		if err != nil || n < 1 || n > maxUsageRows {
			return openai.BadRequest(name, openai.CodeInvalidValue, "limit must be from 1 to %d", maxUsageRows)
		}
		q.Limit = n
	case "format":
		if value != "json" && value != "csv" {
			return openai.BadRequest(name, openai.CodeInvalidValue, "format must be json or csv")
		}
		q.CSV = value == "csv"
	default:
		return openai.BadRequest(name, openai.CodeUnknownMember, "unknown query parameter: known are from, to, key_id, limit, after and format")
	}
	return nil
}
