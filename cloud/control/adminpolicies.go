package control

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/weirhq/weir/cascade/policy"
	"github.com/weirhq/weir/cloud/control/openapi"
	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/store"
)

func policyRoutes() []adminRoute {
	which := []openapi.Param{paramTenant, {Name: "class", In: "query", Doc: "an SLO class; empty: the tenant's general policy"}}
	remove := change(http.MethodDelete, "/policies", manage, "deletePolicy", "Remove a cascade policy.",
		func(a *adminCall, _ none) (deleted, *store.Change, error) {
			tenant, err := a.tenant(a.query["tenant_id"])
			if err != nil {
				return deleted{}, nil, err
			}
			before, err := a.tx.PolicyOf(a.ctx, tenant, a.query["class"])
			if err != nil {
				return deleted{}, nil, err
			}
			err = a.tx.DeletePolicy(a.ctx, tenant, before.Class)
			return deleted{policyID(before), true}, &store.Change{TenantID: tenant, Action: "policy.delete", Kind: "policy", ObjectID: policyID(before), Before: before}, err
		})
	remove.params = which
	return []adminRoute{
		view("/policies", read, "listPolicies", "List cascade policies by tenant and class.", ofTenant, pages(
			func(a *adminCall, tenant string, p store.Page) ([]store.Policy, error) {
				return a.tx.Policies(a.ctx, tenant, p)
			}, policyID)),
		change(http.MethodPut, "/policies", manage, "putPolicy", "Set how requests of a tenant, or of one of its classes, are cascaded.", putPolicy),
		remove,
	}
}

// policyID names a policy in the audit log and in cursors.
func policyID(p store.Policy) string { return p.TenantID + "/" + p.Class }

// checkSettings refuses what an edge node would refuse: it would keep the
// policy it has, and nobody would see why.
func checkSettings(n *store.Policy) (policy.Settings, error) {
	spec := n.Spec
	if string(spec) == "null" {
		spec = nil
	}
	s, err := policy.Join(spec, n.Mode, n.Threshold)
	if err != nil {
		return s, &tenants.FieldError{Field: "spec", Problem: err.Error()}
	}
	return s, nil
}

func putPolicy(a *adminCall, n store.Policy) (p store.Policy, ch *store.Change, err error) {
	settings, err := checkSettings(&n)
	if err != nil {
		return p, nil, err
	}
	if n.TenantID, err = a.tenant(n.TenantID); err != nil {
		return p, nil, err
	}
	if err = checkRisk(a, &n, &settings); err != nil {
		return p, nil, err
	}
	ch = &store.Change{TenantID: n.TenantID, Action: "policy.put", Kind: "policy", ObjectID: policyID(n)}
	before, err := a.tx.PolicyOf(a.ctx, n.TenantID, n.Class)
	switch {
	case err == nil:
		ch.Before = before
	case !errors.Is(err, store.ErrNotFound):
		return p, nil, err
	}
	p, err = a.tx.PutPolicy(a.ctx, n)
	ch.After = p
	return p, ch, err
}

// shownToken is a join token with its secret, shown once.
type shownToken struct {
	store.JoinToken
	Text string `json:"token" doc:"shown once"`
}

func (c *Control) deviceRoutes() []adminRoute {
	return []adminRoute{
		view("/join-tokens", read, "listJoinTokens", "List join tokens, oldest first.", ofTenant, pages(
			func(a *adminCall, tenant string, p store.Page) ([]store.JoinToken, error) {
				return a.tx.JoinTokens(a.ctx, tenant, p)
			},
			func(t store.JoinToken) string { return t.ID })),
		create("/join-tokens", manage, "createJoinToken", "Add a token with which one device may join.", c.createJoinToken),
		view("/join-tokens/:id", read, "getJoinToken", "Show a join token.", nil, func(a *adminCall) (store.JoinToken, error) {
			return a.tx.JoinTokenByID(a.ctx, a.who.TenantID, a.Param("id"))
		}),
		view("/devices", read, "listDevices", "List devices, oldest first.", ofTenantByID, pages(
			func(a *adminCall, tenant string, p store.Page) ([]store.Device, error) {
				return a.tx.Devices(a.ctx, tenant, p)
			},
			func(d store.Device) string { return d.ID })),
		view("/devices/:id", read, "getDevice", "Show a device.", nil, func(a *adminCall) (store.Device, error) {
			return a.tx.DeviceByID(a.ctx, a.who.TenantID, a.Param("id"))
		}),
	}
}

func (c *Control) createJoinToken(a *adminCall, n store.NewJoinToken) (shown shownToken, ch *store.Change, err error) {
	if n.TenantID, err = a.tenant(n.TenantID); err != nil {
		return shown, nil, err
	}
	t, secret, err := a.tx.CreateJoinToken(a.ctx, n, c.auth.Pin())
	ch = &store.Change{TenantID: t.TenantID, Action: "join_token.create", Kind: "join_token", ObjectID: t.ID, After: t}
	return shownToken{t, secret.Reveal()}, ch, err
}

func auditRoutes() []adminRoute {
	text := func(name, doc string) openapi.Param { return openapi.Param{Name: name, In: "query", Doc: doc} }
	params := append([]openapi.Param{}, ofTenant...)
	params = append(params, text("actor", "id of an admin token"), text("object_kind", "such as key"), text("object_id", ""), text("action", "such as key.rotate"),
		openapi.Param{Name: "from", In: "query", Format: "date-time"}, openapi.Param{Name: "to", In: "query", Format: "date-time", Doc: "excluded"})
	return []adminRoute{
		view("/audit", read, "listAudit", "List changes, newest first.", params, func(a *adminCall) (list[store.AuditEntry], error) {
			q := store.AuditQuery{Actor: a.query["actor"], ObjectKind: a.query["object_kind"], Object: a.query["object_id"], Action: a.query["action"]}
			if err := errors.Join(a.when("from", &q.From), a.when("to", &q.To)); err != nil {
				return list[store.AuditEntry]{}, err
			}
			return pages(func(a *adminCall, tenant string, p store.Page) ([]store.AuditEntry, error) {
				q.TenantID = tenant
				return a.tx.AuditLog(a.ctx, q, p)
			}, func(e store.AuditEntry) string { return fmt.Sprint(e.ID) })(a)
		}),
	}
}

func (c *Control) metaRoutes() []adminRoute {
	spec := adminRoute{method: http.MethodGet, path: "/openapi.json", access: anyone, id: "getOpenAPI", summary: "This description.",
		status: http.StatusOK, outType: "application/json", serve: serveSpec}
	return []adminRoute{
		view("/models", read, "listModels", "List the models that applications may ask for.", nil, func(*adminCall) (list[tenants.Model], error) {
			return list[tenants.Model]{Object: "list", Data: append([]tenants.Model{}, c.o.Models...)}, nil
		}),
		spec,
	}
}
