package control

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/weirhq/weir/cloud/control/openapi"
	"github.com/weirhq/weir/internal/openai"
)

const (
	maxList     = 1000
	defaultList = 100
)

// Parameters of lists.
var (
	paramTenant  = openapi.Param{Name: "tenant_id", In: "query", Format: "uuid", Doc: "only this tenant's; a token that is bound to a tenant needs none"}
	paramAfter   = openapi.Param{Name: "after", In: "query", Doc: "next of the page before"}
	paramLimit   = openapi.Param{Name: "limit", In: "query", Type: "integer", Doc: "1 to 1000, default 100"}
	paramAfterID = openapi.Param{Name: "after", In: "query", Format: "uuid", Doc: "next of the page before"}
	ofTenantByID = []openapi.Param{paramTenant, paramAfterID, paramLimit}
	ofTenant     = []openapi.Param{paramTenant, paramAfter, paramLimit}
	ofPlatform   = []openapi.Param{paramAfter, paramLimit}
)

// readQuery reads parameters, each at most once, and refuses those not in
// known.
func readQuery(raw string, known []openapi.Param) (map[string]string, error) {
	q, err := url.ParseQuery(raw)
	if err != nil {
		return nil, openai.BadRequest("", openai.CodeInvalidValue, "the query string is malformed")
	}
	out := make(map[string]string, len(q))
	for name, values := range q {
		i := slices.IndexFunc(known, func(p openapi.Param) bool { return p.Name == name })
		if i < 0 {
			return nil, openai.BadRequest(name, openai.CodeUnknownMember, "unknown query parameter: known are %s", names(known))
		}
		if len(values) != 1 || len(values[0]) > 256 || values[0] != "" && !printable(values[0]) {
			return nil, openai.BadRequest(name, openai.CodeInvalidValue, "%s: want one value of at most 256 printable bytes", name)
		}
		v := values[0]
		switch p := known[i]; {
		case v == "":
		case p.Format == "uuid":
			if _, err := uuid.Parse(v); err != nil || len(v) != 36 {
				return nil, openai.BadRequest(name, openai.CodeInvalidValue, "%s: want a UUID", name)
			}
			v = strings.ToLower(v)
		case len(p.Enum) > 0 && !slices.Contains(p.Enum, v):
			return nil, openai.BadRequest(name, openai.CodeInvalidValue, "%s: want one of %s", name, strings.Join(p.Enum, ", "))
		}
		out[name] = v
	}
	return out, nil
}

func names(ps []openapi.Param) string {
	out := make([]string, len(ps))
	for i, p := range ps {
		out[i] = p.Name
	}
	return strings.Join(out, ", ")
}

func printable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
}

// limit reads a page's size, of at least least.
func limit(s string, least int) (int, error) {
	if s == "" {
		return defaultList, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < least || n > maxList {
		return 0, openai.BadRequest("limit", openai.CodeInvalidValue, "limit: want %d to %d", least, maxList)
	}
	return n, nil
}

// when reads a time; dst stays as it is when none is given.
func (a *adminCall) when(name string, dst *time.Time) error {
	v := a.query[name]
	if v == "" {
		return nil
	}
	t, err := time.Parse(time.RFC3339, v)
	if err != nil || t.Year() < 1970 || t.Year() > 9999 {
		return openai.BadRequest(name, openai.CodeInvalidValue, "%s: want a time such as 2026-01-31T00:00:00Z", name)
	}
	*dst = t.UTC()
	return nil
}
