package control

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/store"
)

// access says which roles may use an admin route.
type access uint8

const (
	anyone   access = iota // no token at all
	read                   // every role; bound tokens see their tenant only
	manage                 // platform_admin, and tenant_admin for its own tenant
	platform               // platform_admin
)

// roles lists who has an access, for the API's description.
func (a access) roles() []string {
	switch a {
	case read:
		return []string{string(store.PlatformAdmin), string(store.TenantAdmin), string(store.Viewer)}
	case manage:
		return []string{string(store.PlatformAdmin), string(store.TenantAdmin)}
	case platform:
		return []string{string(store.PlatformAdmin)}
	}
	return nil
}

func allowed(r store.AdminRole, a access) bool {
	for _, may := range a.roles() {
		if may == string(r) {
			return true
		}
	}
	return a == anyone
}

// adminCall is one request to the admin API with who makes it. Handlers see
// the database through tx alone, which has the caller's rights.
type adminCall struct {
	*gin.Context
	who   store.AdminToken
	ctx   context.Context
	query map[string]string
	tx    *store.Store
}

func (a *adminCall) actor() store.Actor {
	return store.Actor{ID: a.who.ID, Role: a.who.Role, TenantID: a.who.TenantID, RequestID: a.Writer.Header().Get(contract.HeaderRequestID)}
}

func (c *Control) registerAdmin(r gin.IRouter) {
	open, closed := r.Group(""), r.Group("", c.authenticate)
	for _, route := range c.adminRoutes() {
		group := closed
		if route.access == anyone {
			group = open
		}
		group.Handle(route.method, route.path, func(g *gin.Context) {
			if err := c.serveAdmin(g, route); err != nil {
				c.fail(g, err)
			}
		})
	}
}

const callerKey = "weir.admin"

func (c *Control) serveAdmin(g *gin.Context, r adminRoute) error {
	who, _ := g.Value(callerKey).(store.AdminToken)
	if !allowed(who.Role, r.access) {
		return forbidden("role", "the token's role does not allow this: it is "+string(who.Role))
	}
	for _, p := range g.Params {
		if !isName(p.Value) { // nothing has such an id
			return store.ErrNotFound
		}
	}
	query, err := readQuery(g.Request.URL.RawQuery, r.params)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(g.Request.Context(), r.within())
	defer cancel()
	return r.serve(c, &adminCall{Context: g, who: who, ctx: ctx, query: query})
}

// exportTimeout bounds an export, which is as long as its rows.
const exportTimeout = 10 * time.Minute

func (r adminRoute) within() time.Duration {
	if r.outType != "" {
		return exportTimeout
	}
	return 2 * callTimeout
}

// isName accepts what ids and names of the API are made of.
func isName(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return s != "" && len(s) <= 128
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
		c.adminsUsed.note(who.ID, time.Now())
		g.Set(callerKey, who)
	}
}

// noStore keeps secrets and tenants' data out of caches.
func noStore(g *gin.Context) { g.Writer.Header().Set("Cache-Control", "no-store") }

// tenant returns the tenant that a call is about: the one asked for, if the
// caller may see it, else the caller's own. "" is all of them.
func (a *adminCall) tenant(asked string) (string, error) {
	own := a.who.TenantID
	if own != "" && asked != "" && !strings.EqualFold(asked, own) {
		return "", forbidden("other_tenant", "the token is for another tenant")
	}
	if asked == "" {
		return own, nil
	}
	return strings.ToLower(asked), nil
}

// page reads the parameters of a list.
func (a *adminCall) page() (tenantID string, p store.Page, err error) {
	if tenantID, err = a.tenant(a.query["tenant_id"]); err != nil {
		return "", p, err
	}
	p.After = a.query["after"]
	p.Limit, err = limit(a.query["limit"], 1)
	return tenantID, p, err
}
