package control

import (
	"encoding/json"
	"strings"

	"github.com/weirhq/weir/cloud/control/openapi"
	"github.com/weirhq/weir/internal/openai"
)

// apiError is the body of an error, for the description.
type apiError struct {
	Error struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param" doc:"the member, parameter or header at fault"`
		Code    *string `json:"code"`
	} `json:"error"`
}

const specText = "Tenants, keys, limits, prices, SLO classes, policies, usage and the audit log of a Weir cloud. " +
	"Times are RFC 3339 in UTC. Unknown members and parameters are refused. Lists come in pages: give next as after. " +
	"POST takes an Idempotency-Key: a retry within a day gets the first call's answer."

// Spec returns the OpenAPI 3.1 description of the admin API as JSON.
func Spec() ([]byte, error) {
	b, err := json.MarshalIndent(describe((&Control{}).adminRoutes()), "", " ")
	return append(b, '\n'), err
}

func describe(routes []adminRoute) *openapi.Document {
	ops := make([]openapi.Operation, 0, len(routes))
	for _, r := range routes {
		op := openapi.Operation{ID: r.id, Method: r.method, Summary: r.summary, Tag: strings.SplitN(r.path, "/", 3)[1],
			Roles: r.access.roles(), In: r.in, Out: r.out, Status: r.status, OutType: r.outType}
		parts := strings.Split("/admin/v1"+r.path, "/")
		for i, p := range parts {
			if name, ok := strings.CutPrefix(p, ":"); ok {
				parts[i] = "{" + name + "}"
				op.Params = append(op.Params, openapi.Param{Name: name, In: "path"})
			}
		}
		op.Path = strings.Join(parts, "/")
		op.Params = append(op.Params, r.params...)
		if r.replays {
			op.Params = append(op.Params, openapi.Param{Name: headerIdempotencyKey, In: "header", Doc: "makes retries safe for a day"})
		}
		ops = append(ops, op)
	}
	return openapi.Build(openapi.Info{Title: "Weir admin API", Version: "1", Description: specText}, ops, apiError{})
}

func serveSpec(_ *Control, a *adminCall) error {
	b, err := Spec()
	if err != nil {
		return openai.Internal(err)
	}
	a.Writer.Header().Set("Content-Type", "application/json")
	_, _ = a.Writer.Write(b) // the client may be gone
	return nil
}
