package gateway

import (
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/google/uuid"

	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/internal/pki"
	"github.com/weirhq/weir/tenants"
)

// caller is whose request it is. Device is "" for applications. A device's own
// anonymous use has a tenant and no key.
type caller struct {
	tenants.Identity
	Device string
}

// identify finds the caller by a device's certificate or an API key.
func (g *Gateway) identify(c *gin.Context) {
	x := of(c)
	t := g.tenancy()
	if t == nil {
		x.refuse(openai.Unavailable("not_ready", 2*time.Second, "the gateway has not loaded its tenants yet"))
		return
	}
	peer, err := pki.PeerOf(c.Request.TLS)
	var failed *openai.Error
	switch {
	case err == nil && peer.Role == pki.RoleEdge:
		failed = x.identifyDevice(c.Request, t.index, peer)
	case err != nil && !errors.Is(err, pki.ErrNoCertificate):
		failed = &openai.Error{Status: http.StatusForbidden, Type: openai.TypePermission, Code: "bad_certificate", NoRetry: true,
			Message: "the client certificate does not say what its holder is", Cause: err}
	default:
		failed = x.identifyKey(c.Request, t.index)
	}
	if failed != nil {
		x.refuse(failed)
	}
}

// deviceHeaders are headers that only devices may send.
var deviceHeaders = []string{contract.HeaderOperation, contract.HeaderAttempt, contract.HeaderKeyID}

// identifyKey authenticates an application. Headers that only devices may send
// are refused by name, so that nobody relies on them.
func (x *exchange) identifyKey(r *http.Request, index *tenants.Index) *openai.Error {
	for _, name := range deviceHeaders {
		if len(r.Header.Values(name)) > 0 {
			return openai.BadRequest(name, openai.CodeInvalidValue, "%s is accepted only from a device with its certificate", name)
		}
	}
	scheme, key, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || key == "" {
		return openai.Unauthorized("an API key is needed: send Authorization: Bearer wk_...")
	}
	id, err := index.Lookup(strings.TrimSpace(key), time.Now())
	if err != nil {
		return keyError(err)
	}
	x.who = caller{Identity: id}
	return nil
}

// identifyDevice takes tenant and device from the certificate and checks that
// the key id, if there is one, belongs to that tenant and still holds.
func (x *exchange) identifyDevice(r *http.Request, index *tenants.Index, peer pki.Peer) *openai.Error {
	for _, name := range deviceHeaders {
		if _, err := contract.Once(r.Header, name); err != nil {
			return openai.AsError(err)
		}
	}
	if op := r.Header.Get(contract.HeaderOperation); op != "" {
		id, err := contract.ParseID(op)
		if err != nil {
			return openai.BadRequest(contract.HeaderOperation, openai.CodeInvalidValue, "%s must be a UUIDv7", contract.HeaderOperation)
		}
		x.op = id
		x.gin.Writer.Header().Set(contract.HeaderRequestID, id)
	}
	if attempt := r.Header.Get(contract.HeaderAttempt); attempt != "" {
		id, err := contract.ParseID(attempt)
		if err != nil {
			return openai.BadRequest(contract.HeaderAttempt, openai.CodeInvalidValue, "%s must be a UUIDv7", contract.HeaderAttempt)
		}
		x.attempt = uuid.MustParse(id)
	}
	x.who.Device = peer.Name
	keyID := r.Header.Get(contract.HeaderKeyID)
	if keyID == "" {
		tenant := index.Tenant(peer.Tenant)
		if tenant == nil || tenant.State != tenants.Active {
			return keyError(tenants.ErrTenantSuspended)
		}
		x.who.Identity = tenants.Identity{TenantID: tenant.ID, Tenant: tenant}
		return nil
	}
	id, err := index.LookupID(keyID, time.Now())
	if err != nil {
		return keyError(err)
	}
	if id.TenantID != peer.Tenant {
		return keyError(tenants.ErrUnknownKey)
	}
	x.who.Identity = id
	return nil
}

// keyError tells a caller why its key was refused. What it says of expired and
// revoked keys only their holders get to see.
func keyError(err error) *openai.Error {
	switch {
	case errors.Is(err, tenants.ErrTenantSuspended):
		return &openai.Error{Status: http.StatusForbidden, Type: openai.TypePermission, Code: "tenant_suspended", NoRetry: true,
			Message: "the tenant is suspended or unknown: ask its operator"}
	case errors.Is(err, tenants.ErrSnapshotExpired):
		return openai.Unavailable("snapshot_expired", 5*time.Second, "the gateway's copy of the tenants has expired: its database is away")
	case errors.Is(err, tenants.ErrKeyExpired):
		return openai.Unauthorized("the API key has expired")
	case errors.Is(err, tenants.ErrKeyRevoked):
		return openai.Unauthorized("the API key is revoked")
	}
	return openai.Unauthorized("the API key is not valid")
}
