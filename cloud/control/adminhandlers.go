package control

import (
	"net/http"
	"time"

	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/store"
)

// list is a page of objects. Next is given when there may be more.
type list[T any] struct {
	Object string `json:"object"` // "list"
	Data   []T    `json:"data"`
	Next   string `json:"next,omitempty"` // value for after
}

func pageOf[T any](data []T, p store.Page, id func(T) string) list[T] {
	l := list[T]{Object: "list", Data: data}
	if len(data) > 0 && len(data) == p.Limit {
		l.Next = id(data[len(data)-1])
	}
	return l
}

func (c *Control) listTenants(a *adminCall) error {
	id, p, err := a.page()
	if err != nil {
		return err
	}
	ts, err := c.store.Tenants(a.ctx, id, p)
	if err != nil {
		return err
	}
	reply(a.Context, http.StatusOK, pageOf(ts, p, func(t store.Tenant) string { return t.ID }))
	return nil
}

func (c *Control) createTenant(a *adminCall) error {
	var n store.NewTenant
	if err := decode(a.Context, &n); err != nil {
		return err
	}
	t, err := c.store.CreateTenant(a.ctx, n)
	if err != nil {
		return err
	}
	reply(a.Context, http.StatusCreated, t)
	return nil
}

func (c *Control) updateTenant(a *adminCall) error {
	var ch store.TenantChange
	if err := decode(a.Context, &ch); err != nil {
		return err
	}
	t, err := c.store.UpdateTenant(a.ctx, a.Param("id"), ch)
	if err != nil {
		return err
	}
	reply(a.Context, http.StatusOK, t)
	return nil
}

func (c *Control) listKeys(a *adminCall) error {
	id, p, err := a.page()
	if err != nil {
		return err
	}
	ks, err := c.store.Keys(a.ctx, id, p)
	if err != nil {
		return err
	}
	reply(a.Context, http.StatusOK, pageOf(ks, p, func(k store.Key) string { return k.ID }))
	return nil
}

// shownKey is a key with its secret, shown once to whoever made it.
type shownKey struct {
	store.Key
	Text string `json:"key"`
}

func (c *Control) createKey(a *adminCall) error {
	var n store.NewKey
	if err := decode(a.Context, &n); err != nil {
		return err
	}
	var err error
	if n.TenantID, err = a.tenant(n.TenantID); err != nil {
		return err
	}
	k, secret, err := c.store.CreateKey(a.ctx, n)
	if err != nil {
		return err
	}
	reply(a.Context, http.StatusCreated, shownKey{k, secret.Reveal()})
	return nil
}

func (c *Control) rotateKey(a *adminCall) error {
	var body struct {
		GraceSeconds int64 `json:"grace_seconds"`
	}
	if err := decode(a.Context, &body); err != nil {
		return err
	}
	if body.GraceSeconds < 0 || body.GraceSeconds > int64(store.MaxGrace/time.Second) {
		return openai.BadRequest("grace_seconds", openai.CodeInvalidValue, "grace_seconds: want 0 to %d", int64(store.MaxGrace/time.Second))
	}
	k, secret, err := c.store.RotateKey(a.ctx, a.who.TenantID, a.Param("id"), time.Duration(body.GraceSeconds)*time.Second)
	if err != nil {
		return err
	}
	reply(a.Context, http.StatusOK, shownKey{k, secret.Reveal()})
	return nil
}

func (c *Control) revokeKey(a *adminCall) error {
	k, err := c.store.RevokeKey(a.ctx, a.who.TenantID, a.Param("id"))
	if err != nil {
		return err
	}
	reply(a.Context, http.StatusOK, k)
	return nil
}

func (c *Control) listJoinTokens(a *adminCall) error {
	id, p, err := a.page()
	if err != nil {
		return err
	}
	ts, err := c.store.JoinTokens(a.ctx, id, p)
	if err != nil {
		return err
	}
	reply(a.Context, http.StatusOK, pageOf(ts, p, func(t store.JoinToken) string { return t.ID }))
	return nil
}

// shownToken is a join token with its secret, shown once.
type shownToken struct {
	store.JoinToken
	Text string `json:"token"`
}

const defaultJoinLife = 24 * time.Hour

func (c *Control) createJoinToken(a *adminCall) error {
	var body struct {
		TenantID   string `json:"tenant_id"`
		Name       string `json:"name"`
		TTLSeconds *int64 `json:"ttl_seconds"` // default: a day
	}
	if err := decode(a.Context, &body); err != nil {
		return err
	}
	n := store.NewJoinToken{Name: body.Name, Life: defaultJoinLife}
	if s := body.TTLSeconds; s != nil {
		if *s < 1 || *s > int64(store.MaxJoinLife/time.Second) {
			return openai.BadRequest("ttl_seconds", openai.CodeInvalidValue, "ttl_seconds: want 1 to %d", int64(store.MaxJoinLife/time.Second))
		}
		n.Life = time.Duration(*s) * time.Second
	}
	var err error
	if n.TenantID, err = a.tenant(body.TenantID); err != nil {
		return err
	}
	t, secret, err := c.store.CreateJoinToken(a.ctx, n, c.auth.Pin())
	if err != nil {
		return err
	}
	reply(a.Context, http.StatusCreated, shownToken{t, secret.Reveal()})
	return nil
}

func (c *Control) listDevices(a *adminCall) error {
	id, p, err := a.page()
	if err != nil {
		return err
	}
	ds, err := c.store.Devices(a.ctx, id, p)
	if err != nil {
		return err
	}
	reply(a.Context, http.StatusOK, pageOf(ds, p, func(d store.Device) string { return d.ID }))
	return nil
}

func (c *Control) listUsage(a *adminCall) error {
	q, err := a.usageQuery(time.Now())
	if err != nil {
		return err
	}
	r, err := c.ledger.Usage(a.ctx, q)
	if err != nil {
		return err
	}
	reply(a.Context, http.StatusOK, r)
	return nil
}

func (c *Control) listModels(a *adminCall) error {
	if _, err := a.query(); err != nil {
		return err
	}
	reply(a.Context, http.StatusOK, list[tenants.Model]{Object: "list", Data: append([]tenants.Model{}, c.o.Models...)})
	return nil
}
