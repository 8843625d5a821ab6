package control

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/store"
)

// access says which roles may use an admin route.
type access uint8

const (
	read     access = iota // every role; bound tokens see their tenant only
	manage                 // platform_admin, and tenant_admin for its own tenant
	platform               // platform_admin
)

// adminRoute is one row of the admin API's table.
type adminRoute struct {
	method, path string
	access       access
	handle       func(*adminCall) error
}

func (c *Control) adminRoutes() []adminRoute {
	return []adminRoute{
		{http.MethodGet, "/tenants", read, c.listTenants},
		{http.MethodPost, "/tenants", platform, c.createTenant},
		{http.MethodPatch, "/tenants/:id", platform, c.updateTenant},
		{http.MethodGet, "/keys", read, c.listKeys},
		{http.MethodPost, "/keys", manage, c.createKey},
		{http.MethodPost, "/keys/:id/rotate", manage, c.rotateKey},
		{http.MethodPost, "/keys/:id/revoke", manage, c.revokeKey},
		{http.MethodGet, "/join-tokens", read, c.listJoinTokens},
		{http.MethodPost, "/join-tokens", manage, c.createJoinToken},
		{http.MethodGet, "/devices", read, c.listDevices},
		{http.MethodGet, "/usage", read, c.listUsage},
		{http.MethodGet, "/models", read, c.listModels},
	}
}

// adminCall is one request to the admin API with who makes it.
type adminCall struct {
	*gin.Context
	who store.AdminToken
	ctx context.Context
}

const callerKey = "weir.admin"

func (c *Control) registerAdmin(r gin.IRouter) {
	for _, route := range c.adminRoutes() {
		r.Handle(route.method, route.path, func(g *gin.Context) {
			who, _ := g.MustGet(callerKey).(store.AdminToken)
			if !allowed(who.Role, route.access) {
				c.fail(g, forbidden("role", "the token's role does not allow this: it is "+string(who.Role)))
				return
			}
			ctx, cancel := context.WithTimeout(g.Request.Context(), 2*callTimeout)
			defer cancel()
			if err := route.handle(&adminCall{g, who, ctx}); err != nil {
				c.fail(g, err)
			}
		})
	}
}

func allowed(r store.AdminRole, a access) bool {
	switch r {
	case store.PlatformAdmin:
		return true
	case store.TenantAdmin:
		return a == read || a == manage
	case store.Viewer:
		return a == read
	}
	return false
}

// authenticate lets only holders of an admin token through.
func (c *Control) authenticate(g *gin.Context) {
	scheme, text, _ := strings.Cut(g.GetHeader("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || text == "" {
		c.fail(g, openai.Unauthorized("an admin token is needed: send Authorization: Bearer wa_..."))
		return
	}
	invalid := openai.Unauthorized("the admin token is not valid")
	token, err := tenants.ParseAdminToken(strings.TrimSpace(text))
	if err != nil {
		c.fail(g, invalid)
		return
	}
	ctx, cancel := context.WithTimeout(g.Request.Context(), callTimeout)
	defer cancel()
	who, err := c.store.CheckAdminToken(ctx, token)
	switch {
	case errors.Is(err, store.ErrAdminToken):
		c.fail(g, invalid)
	case err != nil:
		c.fail(g, err)
	default:
		g.Set(callerKey, who)
	}
}

// noStore keeps secrets and tenants' data out of caches.
func noStore(g *gin.Context) { g.Writer.Header().Set("Cache-Control", "no-store") }

// tenant returns the tenant that a call is about: the one asked for, if the
// caller may see it, else the caller's own. "" is all of them.
func (a *adminCall) tenant(asked string) (string, error) {
	own := a.who.TenantID
	if own != "" && asked != "" && asked != own {
		return "", forbidden("other_tenant", "the token is for another tenant")
	}
	if asked == "" {
		return own, nil
	}
	return asked, nil
}
