package control

import (
	"net/http"
	"strconv"

	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/store"
)

// adminRoutes is the whole admin API.
func (c *Control) adminRoutes() []adminRoute {
	var all []adminRoute
	for _, part := range [][]adminRoute{
		tenantRoutes(), tokenRoutes(), c.keyRoutes(), c.limitRoutes(), classRoutes(), priceRoutes(), policyRoutes(),
		c.deviceRoutes(), c.expertRoutes(), c.poolRoutes(), c.memberRoutes(), armRoutes(), usageRoutes(), auditRoutes(), c.metaRoutes(),
	} {
		all = append(all, part...)
	}
	return all
}

func tenantRoutes() []adminRoute {
	return []adminRoute{
		view("/tenants", read, "listTenants", "List tenants, oldest first.", ofTenantByID, pages(
			func(a *adminCall, tenant string, p store.Page) ([]store.Tenant, error) {
				return a.tx.Tenants(a.ctx, tenant, p)
			},
			func(t store.Tenant) string { return t.ID })),
		create("/tenants", platform, "createTenant", "Add a tenant.", func(a *adminCall, n store.NewTenant) (store.Tenant, *store.Change, error) {
			t, err := a.tx.CreateTenant(a.ctx, n)
			return t, &store.Change{TenantID: t.ID, Action: "tenant.create", Kind: "tenant", ObjectID: t.ID, After: t}, err
		}),
		view("/tenants/:id", read, "getTenant", "Show a tenant.", nil, func(a *adminCall) (store.Tenant, error) {
			if own := a.who.TenantID; own != "" && own != a.Param("id") {
				return store.Tenant{}, store.ErrNotFound
			}
			return a.tx.TenantByID(a.ctx, a.Param("id"))
		}),
		change(http.MethodPatch, "/tenants/:id", platform, "updateTenant", "Rename, suspend or weigh a tenant.",
			func(a *adminCall, n store.TenantChange) (store.Tenant, *store.Change, error) {
				before, err := a.tx.TenantByID(a.ctx, a.Param("id"))
				if err != nil {
					return before, nil, err
				}
				t, err := a.tx.UpdateTenant(a.ctx, before.ID, n)
				return t, &store.Change{TenantID: t.ID, Action: "tenant.update", Kind: "tenant", ObjectID: t.ID, Before: before, After: t}, err
			}),
	}
}

// shownAdminToken is an admin token with its secret, shown once.
type shownAdminToken struct {
	store.AdminToken
	Text string `json:"token" doc:"shown once"`
}

func tokenRoutes() []adminRoute {
	return []adminRoute{
		view("/admin-tokens", manage, "listAdminTokens", "List admin tokens, oldest first.", ofTenant, pages(
			func(a *adminCall, tenant string, p store.Page) ([]store.AdminToken, error) {
				return a.tx.AdminTokens(a.ctx, tenant, p)
			},
			func(t store.AdminToken) string { return t.ID })),
		create("/admin-tokens", manage, "createAdminToken", "Add an admin token. A tenant's admin makes tokens for its own tenant only.", createAdminToken),
		view("/admin-tokens/:id", manage, "getAdminToken", "Show an admin token.", nil, func(a *adminCall) (store.AdminToken, error) {
			return a.tx.AdminTokenByID(a.ctx, a.who.TenantID, a.Param("id"))
		}),
		change(http.MethodPost, "/admin-tokens/:id/rotate", manage, "rotateAdminToken", "Give an admin token a new secret. Id and role stay.", rotateAdminToken),
		change(http.MethodPost, "/admin-tokens/:id/revoke", manage, "revokeAdminToken", "End an admin token for good.",
			func(a *adminCall, _ none) (store.AdminToken, *store.Change, error) {
				before, err := a.tx.AdminTokenByID(a.ctx, a.who.TenantID, a.Param("id"))
				if err != nil {
					return before, nil, err
				}
				t, err := a.tx.RevokeAdminToken(a.ctx, a.who.TenantID, before.ID)
				return t, &store.Change{TenantID: t.TenantID, Action: "admin_token.revoke", Kind: "admin_token", ObjectID: t.ID, Before: before, After: t}, err
			}),
	}
}

func createAdminToken(a *adminCall, n store.NewAdminToken) (shown shownAdminToken, ch *store.Change, err error) {
	if n.TenantID, err = a.tenant(n.TenantID); err != nil {
		return shown, nil, err
	}
	if a.who.Role != store.PlatformAdmin && n.Role == store.PlatformAdmin {
		return shown, nil, forbidden("role", "only a platform admin makes platform admins")
	}
	t, secret, err := a.tx.CreateAdminToken(a.ctx, n)
	ch = &store.Change{TenantID: t.TenantID, Action: "admin_token.create", Kind: "admin_token", ObjectID: t.ID, After: t}
	return shownAdminToken{t, secret.Reveal()}, ch, err
}

// rotateAdminToken keeps callers from locking themselves out: without a grace
// the retry of an answer that was lost would come with a secret that has ended.
func rotateAdminToken(a *adminCall, r rotation) (shownAdminToken, *store.Change, error) {
	grace, err := r.grace()
	if err != nil {
		return shownAdminToken{}, nil, err
	}
	if grace == 0 && a.Param("id") == a.who.ID {
		return shownAdminToken{}, nil, badValue("grace_seconds", "a token that rotates itself needs some time for a lost answer's retry: want 1 or more")
	}
	before, err := a.tx.AdminTokenByID(a.ctx, a.who.TenantID, a.Param("id"))
	if err != nil {
		return shownAdminToken{}, nil, err
	}
	t, secret, err := a.tx.RotateAdminToken(a.ctx, a.who.TenantID, before.ID, grace)
	ch := &store.Change{TenantID: t.TenantID, Action: "admin_token.rotate", Kind: "admin_token", ObjectID: t.ID, Before: before, After: t}
	return shownAdminToken{t, secret.Reveal()}, ch, err
}

func classRoutes() []adminRoute {
	return []adminRoute{
		view("/slo-classes", read, "listClasses", "List SLO classes by name.", ofPlatform, pages(
			func(a *adminCall, _ string, p store.Page) ([]store.Class, error) { return a.tx.Classes(a.ctx, p) },
			func(c store.Class) string { return c.Name })),
		create("/slo-classes", platform, "createClass", "Add an SLO class.", func(a *adminCall, n store.NewClass) (store.Class, *store.Change, error) {
			cl, err := a.tx.CreateClass(a.ctx, n)
			return cl, &store.Change{Action: "slo_class.create", Kind: "slo_class", ObjectID: cl.Name, After: cl}, err
		}),
		view("/slo-classes/:id", read, "getClass", "Show an SLO class.", nil, func(a *adminCall) (store.Class, error) {
			return a.tx.ClassByName(a.ctx, a.Param("id"))
		}),
		change(http.MethodPatch, "/slo-classes/:id", platform, "updateClass", "Change an SLO class.",
			func(a *adminCall, n store.ClassChange) (store.Class, *store.Change, error) {
				before, err := a.tx.ClassByName(a.ctx, a.Param("id"))
				if err != nil {
					return before, nil, err
				}
				cl, err := a.tx.UpdateClass(a.ctx, before, n)
				return cl, &store.Change{Action: "slo_class.update", Kind: "slo_class", ObjectID: cl.Name, Before: before, After: cl}, err
			}),
		change(http.MethodDelete, "/slo-classes/:id", platform, "deleteClass", "Remove an SLO class that nothing names.",
			func(a *adminCall, _ none) (deleted, *store.Change, error) {
				before, err := a.tx.ClassByName(a.ctx, a.Param("id"))
				if err != nil {
					return deleted{}, nil, err
				}
				err = a.tx.DeleteClass(a.ctx, before.Name)
				return deleted{before.Name, true}, &store.Change{Action: "slo_class.delete", Kind: "slo_class", ObjectID: before.Name, Before: before}, err
			}),
	}
}

// deleted answers a removal.
type deleted struct {
	ID      string `json:"id"`
	Deleted bool   `json:"deleted"`
}

func priceRoutes() []adminRoute {
	return []adminRoute{
		view("/prices", read, "listPrices", "List the price book, oldest version first.", ofPlatform, pages(
			func(a *adminCall, _ string, p store.Page) ([]tenants.Price, error) { return a.tx.Prices(a.ctx, p) },
			func(p tenants.Price) string { return strconv.FormatInt(p.Version, 10) })),
		create("/prices", platform, "createPrice", "Add a row to the price book. Rows never change: a later one takes over at its date.",
			func(a *adminCall, n store.NewPrice) (tenants.Price, *store.Change, error) {
				p, err := a.tx.CreatePrice(a.ctx, n)
				return p, &store.Change{Action: "price.create", Kind: "price", ObjectID: strconv.FormatInt(p.Version, 10), After: p}, err
			}),
		view("/prices/:id", read, "getPrice", "Show a row of the price book by its version.", nil, func(a *adminCall) (tenants.Price, error) {
			v, err := strconv.ParseInt(a.Param("id"), 10, 64)
			if err != nil {
				return tenants.Price{}, store.ErrNotFound
			}
			return a.tx.PriceByVersion(a.ctx, v)
		}),
	}
}
