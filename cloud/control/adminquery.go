package control

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants/ledger"
	"github.com/weirhq/weir/tenants/store"
)

const (
	maxList     = 1000
	defaultList = 100
)

// query reads parameters, each at most once, and refuses those not in known.
func (a *adminCall) query(known ...string) (map[string]string, error) {
	q, err := url.ParseQuery(a.Request.URL.RawQuery)
	if err != nil {
		return nil, openai.BadRequest("", openai.CodeInvalidValue, "the query string is malformed")
	}
	out := make(map[string]string, len(q))
	for name, values := range q {
		if !slices.Contains(known, name) {
			return nil, openai.BadRequest(name, openai.CodeUnknownMember, "unknown query parameter: known are %s", strings.Join(known, ", "))
		}
		if len(values) != 1 || len(values[0]) > 256 {
			return nil, openai.BadRequest(name, openai.CodeInvalidValue, "%s: want one value of at most 256 bytes", name)
		}
		out[name] = values[0]
	}
	for _, name := range []string{"tenant_id", "device_id", "operation_id"} {
		if v := out[name]; v != "" {
			if _, err := uuid.Parse(v); err != nil || len(v) != 36 {
				return nil, openai.BadRequest(name, openai.CodeInvalidValue, "%s: want a UUID", name)
			}
			out[name] = strings.ToLower(v)
		}
	}
	return out, nil
}

// page reads tenant_id, after and limit.
func (a *adminCall) page() (tenantID string, p store.Page, err error) {
	q, err := a.query("tenant_id", "after", "limit")
	if err != nil {
		return "", p, err
	}
	if tenantID, err = a.tenant(q["tenant_id"]); err != nil {
		return "", p, err
	}
	p.After = q["after"]
	p.Limit, err = limit(q["limit"])
	return tenantID, p, err
}

func limit(s string) (int, error) {
	if s == "" {
		return defaultList, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > maxList {
		return 0, openai.BadRequest("limit", openai.CodeInvalidValue, "limit: want 1 to %d", maxList)
	}
	return n, nil
}

// usageQuery reads what GET /admin/v1/usage selects; the last day by default.
func (a *adminCall) usageQuery(now time.Time) (ledger.Query, error) {
	v, err := a.query("tenant_id", "key_id", "device_id", "operation_id", "from", "to", "limit", "after")
	if err != nil {
		return ledger.Query{}, err
	}
	q := ledger.Query{
		KeyID: v["key_id"], DeviceID: v["device_id"], OperationID: v["operation_id"], After: v["after"],
		From: now.Add(-24 * time.Hour), To: now.Add(time.Hour), // clocks of devices may run ahead
	}
	if q.TenantID, err = a.tenant(v["tenant_id"]); err != nil {
		return q, err
	}
	if q.Limit, err = limit(v["limit"]); err != nil {
		return q, err
	}
	for name, dst := range map[string]*time.Time{"from": &q.From, "to": &q.To} {
		if v[name] == "" {
			continue
		}
		if *dst, err = time.Parse(time.RFC3339, v[name]); err != nil {
			return q, openai.BadRequest(name, openai.CodeInvalidValue, "%s: want a time such as 2026-01-31T00:00:00Z", name)
		}
	}
	if !q.From.Before(q.To) {
		return q, openai.BadRequest("from", openai.CodeInvalidValue, "from: want a time before to")
	}
	return q, nil
}
