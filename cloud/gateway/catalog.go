package gateway

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/weirhq/weir/internal/openai"
)

// answer sends a JSON document with status 200.
func (x *exchange) answer(v any) {
	x.wrote = true
	h := x.gin.Writer.Header()
	h.Set("Content-Type", "application/json")
	x.gin.Writer.WriteHeader(http.StatusOK)
	_, _ = x.gin.Writer.Write(mustJSON(v)) // the client may be gone
}

func (g *Gateway) modelEntry(name string) openai.Model {
	_, context := g.opts.Pool.Serves(g.opts.Models[name].Pool)
	return openai.Model{ID: name, Object: openai.ObjectModel, Created: modelsCreated, OwnedBy: "weir", MaxModelLen: context}
}

// modelsCreated is a fixed date, because clients only want the member there.
const modelsCreated = 1767225600 // 2026-01-01

func (g *Gateway) listModels(x *exchange) {
	list := openai.ModelList{Object: openai.ObjectList, Data: []openai.Model{}}
	for _, name := range g.models {
		if x.who.MayUseModel(name) {
			list.Data = append(list.Data, g.modelEntry(name))
		}
	}
	x.answer(list)
}

func (g *Gateway) getModel(x *exchange) {
	name := x.gin.Param("id")
	if _, ok := g.opts.Models[name]; !ok || !x.who.MayUseModel(name) {
		x.refuse(openai.ModelNotFound(name))
		return
	}
	x.answer(g.modelEntry(name))
}

// UsageQuery asks for a tenant's own use.
type UsageQuery struct {
	TenantID string
	KeyID    string // "" is all keys of the tenant
	From, To time.Time
	Limit    int // rows
}

// UsageReader answers usage queries with a value that marshals to JSON.
type UsageReader interface {
	Usage(ctx context.Context, q UsageQuery) (any, error)
}

// maxUsageRows bounds GET /v1/usage.
const maxUsageRows = 1000

func (g *Gateway) showUsage(x *exchange) {
	q, err := usageQuery(x.gin.Request.URL.Query(), time.Now())
	if err != nil {
		x.refuse(openai.AsError(err))
		return
	}
	q.TenantID = x.who.TenantID
	if g.opts.Usage == nil {
		x.refuse(openai.Unavailable("usage_unavailable", time.Second, "the usage ledger is not connected"))
		return
	}
	ctx, cancel := context.WithTimeout(x.ctx, 10*time.Second)
	defer cancel()
	rows, err := g.opts.Usage.Usage(ctx, q)
	if err != nil {
		e := openai.Unavailable("usage_unavailable", time.Second, "the usage ledger cannot be read now")
		e.Cause = err
		x.refuse(e)
		return
	}
	x.answer(rows)
}

// usageQuery reads the query string: from and to (RFC 3339; the last day by
// default), key_id, limit.
func usageQuery(v url.Values, now time.Time) (UsageQuery, error) {
	q := UsageQuery{From: now.Add(-24 * time.Hour), To: now, Limit: 100}
	for name := range v {
		switch value := v.Get(name); name {
		case "from", "to":
			t, err := time.Parse(time.RFC3339, value)
			if err != nil {
				return q, openai.BadRequest(name, openai.CodeInvalidValue, "%s must be a time such as 2026-01-31T00:00:00Z", name)
			}
			if name == "from" {
				q.From = t
			} else {
				q.To = t
			}
		case "key_id":
			if len(value) > 64 {
				return q, openai.BadRequest(name, openai.CodeInvalidValue, "key_id is too long")
			}
			q.KeyID = value
		case "limit":
			n, err := strconv.Atoi(value)
			if err != nil || n < 1 || n > maxUsageRows {
				return q, openai.BadRequest(name, openai.CodeInvalidValue, "limit must be from 1 to %d", maxUsageRows)
			}
			q.Limit = n
		default:
			return q, openai.BadRequest(name, openai.CodeUnknownMember, "unknown query parameter: known are from, to, key_id and limit")
		}
	}
	if !q.From.Before(q.To) {
		return q, openai.BadRequest("from", openai.CodeInvalidValue, "from must be before to")
	}
	return q, nil
}
