package control

import (
	"fmt"
	"net/http"
	"time"

	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/store"
)

// shownKey is a key with its secret, shown once to whoever made it.
type shownKey struct {
	store.Key
	Text string `json:"key" doc:"shown once"`
}

// rotation is the body of a secret's rotation.
type rotation struct {
	GraceSeconds int64 `json:"grace_seconds" example:"3600" doc:"how long the old secret is accepted, too; up to 30 days"`
}

func (r rotation) grace() (time.Duration, error) {
	if most := int64(store.MaxGrace / time.Second); r.GraceSeconds < 0 || r.GraceSeconds > most {
		return 0, badValue("grace_seconds", "want 0 to %d", most)
	}
	return time.Duration(r.GraceSeconds) * time.Second, nil
}

func (c *Control) keyRoutes() []adminRoute {
	return []adminRoute{
		view("/keys", read, "listKeys", "List API keys, oldest first.", ofTenant, pages(
			func(a *adminCall, tenant string, p store.Page) ([]store.Key, error) {
				return a.tx.Keys(a.ctx, tenant, p)
			},
			func(k store.Key) string { return k.ID })),
		create("/keys", manage, "createKey", "Add an API key.", func(a *adminCall, n store.NewKey) (shown shownKey, ch *store.Change, err error) {
			if n.TenantID, err = a.tenant(n.TenantID); err != nil {
				return shown, nil, err
			}
			if err := c.knowModels(a, "models", n.Models); err != nil {
				return shown, nil, err
			}
			k, secret, err := a.tx.CreateKey(a.ctx, n)
			return shownKey{k, secret.Reveal()}, keyChange("key.create", nil, k), err
		}),
		view("/keys/:id", read, "getKey", "Show an API key.", nil, func(a *adminCall) (store.Key, error) {
			return a.tx.KeyByID(a.ctx, a.who.TenantID, a.Param("id"))
		}),
		change(http.MethodPatch, "/keys/:id", manage, "updateKey", "Change what an API key may do.",
			func(a *adminCall, n store.KeyChange) (store.Key, *store.Change, error) {
				before, err := a.key()
				if err != nil {
					return before, nil, err
				}
				if n.Models != nil {
					if err := c.knowModels(a, "models", *n.Models); err != nil {
						return before, nil, err
					}
				}
				k, err := a.tx.UpdateKey(a.ctx, a.who.TenantID, before.ID, n)
				return k, keyChange("key.update", &before, k), err
			}),
		change(http.MethodPost, "/keys/:id/rotate", manage, "rotateKey", "Give an API key a new secret. Id, limits and spend stay.", rotateKey),
		change(http.MethodPost, "/keys/:id/revoke", manage, "revokeKey", "End an API key for good.",
			func(a *adminCall, _ none) (store.Key, *store.Change, error) {
				before, err := a.key()
				if err != nil {
					return before, nil, err
				}
				k, err := a.tx.RevokeKey(a.ctx, a.who.TenantID, before.ID)
				return k, keyChange("key.revoke", &before, k), err
			}),
	}
}

// key reads the key that the path names, which the call will change.
func (a *adminCall) key() (store.Key, error) {
	return a.tx.KeyByID(a.ctx, a.who.TenantID, a.Param("id"))
}

func keyChange(action string, before *store.Key, after store.Key) *store.Change {
	ch := &store.Change{TenantID: after.TenantID, Action: action, Kind: "key", ObjectID: after.ID, After: after}
	if before != nil {
		ch.Before = *before
	}
	return ch
}

func rotateKey(a *adminCall, r rotation) (shownKey, *store.Change, error) {
	grace, err := r.grace()
	if err != nil {
		return shownKey{}, nil, err
	}
	before, err := a.key()
	if err != nil {
		return shownKey{}, nil, err
	}
	k, secret, err := a.tx.RotateKey(a.ctx, a.who.TenantID, before.ID, grace)
	return shownKey{k, secret.Reveal()}, keyChange("key.rotate", &before, k), err
}

func (c *Control) limitRoutes() []adminRoute {
	return []adminRoute{
		view("/limits", read, "listLimits", "List limits, oldest first.", ofTenantByID, pages(
			func(a *adminCall, tenant string, p store.Page) ([]store.Limit, error) {
				return a.tx.Limits(a.ctx, tenant, p)
			},
			func(l store.Limit) string { return l.ID })),
		create("/limits", manage, "createLimit", "Add a limit. All limits that match a request hold; a tenant's admins may only add to the platform's.",
			func(a *adminCall, n store.NewLimit) (l store.Limit, ch *store.Change, err error) {
				if n.TenantID, err = a.tenant(n.TenantID); err != nil {
					return l, nil, err
				}
				if n.Model != "" {
					if err := c.knowModels(a, "model", []string{n.Model}); err != nil {
						return l, nil, err
					}
				}
				n.SetBy = a.side()
				l, err = a.tx.CreateLimit(a.ctx, n)
				return l, &store.Change{TenantID: l.TenantID, Action: "limit.create", Kind: "limit", ObjectID: l.ID, After: l}, err
			}),
		view("/limits/:id", read, "getLimit", "Show a limit.", nil, func(a *adminCall) (store.Limit, error) {
			return a.tx.LimitByID(a.ctx, a.who.TenantID, a.Param("id"))
		}),
		change(http.MethodPatch, "/limits/:id", manage, "updateLimit", "Raise, lower, or shadow a limit. Its counters stay.",
			func(a *adminCall, n store.LimitChange) (store.Limit, *store.Change, error) {
				before, err := a.limit()
				if err != nil {
					return before, nil, err
				}
				l, err := a.tx.UpdateLimit(a.ctx, before, n)
				return l, &store.Change{TenantID: l.TenantID, Action: "limit.update", Kind: "limit", ObjectID: l.ID, Before: before, After: l}, err
			}),
		change(http.MethodDelete, "/limits/:id", manage, "deleteLimit", "Remove a limit.",
			func(a *adminCall, _ none) (deleted, *store.Change, error) {
				before, err := a.limit()
				if err != nil {
					return deleted{}, nil, err
				}
				err = a.tx.DeleteLimit(a.ctx, before.ID)
				return deleted{before.ID, true}, &store.Change{TenantID: before.TenantID, Action: "limit.delete", Kind: "limit", ObjectID: before.ID, Before: before}, err
			}),
	}
}

// side says for whom the caller sets limits.
func (a *adminCall) side() store.SetBy {
	if a.who.TenantID == "" {
		return store.ByPlatform
	}
	return store.ByTenant
}

// limit reads the limit that the path names, which the call will change.
func (a *adminCall) limit() (store.Limit, error) {
	l, err := a.tx.LimitByID(a.ctx, a.who.TenantID, a.Param("id"))
	if err == nil && a.side() == store.ByTenant && l.SetBy == store.ByPlatform {
		err = forbidden("set_by", "the platform has set this limit: only a platform admin changes it")
	}
	return l, err
}

// bundledEdge is the model that devices have by default.
const bundledEdge = "hub-edge"

// knowModels refuses names of models that are nowhere configured: a key or a
// limit with one would never take effect. A device's own model is known by its
// row of the price book.
func (c *Control) knowModels(a *adminCall, field string, names []string) error {
	known := map[string]bool{bundledEdge: true}
	for _, m := range c.o.Models {
		// A limit counts the model that answers, which a cascade's name is not.
		if !m.Cascade || field != "model" {
			known[m.Name] = true
		}
	}
	for _, name := range c.o.Pools {
		known[name] = true
	}
	for _, s := range c.listPools().Data {
		known[s.Model] = true
	}
	for _, name := range names {
		if known[name] {
			continue
		}
		priced, err := a.tx.Priced(a.ctx, tenants.Edge, name)
		if err != nil {
			return err
		}
		if !priced {
			return badValue(field, "no model %q is configured here, nor an edge model of that name in the price book", name)
		}
	}
	return nil
}

func badValue(field, format string, args ...any) error {
	return &tenants.FieldError{Field: field, Problem: fmt.Sprintf(format, args...)}
}
