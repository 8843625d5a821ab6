package control

import (
	"context"
	"crypto/ed25519"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/internal/pki"
	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/price"
	"github.com/weirhq/weir/tenants/store"
)

// Register adds the routes of devices, workers and operators. None reaches a model.
func (c *Control) Register(r gin.IRouter) {
	r.POST("/edge/v1/join", c.join)
	r.GET("/edge/v1/snapshot", c.snapshot)
	r.POST("/edge/v1/usage", c.usage)
	r.POST("/edge/v1/cascade", c.learned)
	c.workerRoutes(r)
	c.registerAdmin(r.Group("/admin/v1", noStore))
}

// JoinRequest is the body of POST /edge/v1/join.
type JoinRequest struct {
	Token string `json:"token"` // wj1...
	CSR   string `json:"csr"`   // PEM; only its public key matters
}

// JoinReply answers it.
type JoinReply struct {
	Certificate string            `json:"certificate"` // PEM, for the key of the CSR
	CA          string            `json:"ca"`          // PEM
	DeviceID    string            `json:"device_id"`
	TenantID    string            `json:"tenant_id"`
	SnapshotKey ed25519.PublicKey `json:"snapshot_key"` // base64
}

// joinTimeout lets many devices that start together wait for one another. A
// device waits a little longer for its answer.
const joinTimeout = 10 * time.Second

// maxJoins at the same time: joins with one token wait for each other's locks,
// and must not take all of the database's connections for it.
const maxJoins = 3

func (c *Control) join(g *gin.Context) {
	if g.Request.TLS == nil {
		c.fail(g, forbidden("tls_required", "devices join over TLS: use the cloud's https address"))
		return
	}
	var req JoinRequest
	if err := decode(g, &req); err != nil {
		c.fail(g, err)
		return
	}
	token, err := tenants.ParseJoinToken(req.Token)
	if err != nil {
		c.fail(g, openai.BadRequest("token", openai.CodeInvalidValue, "token: a join token looks like wj1.<id>.<secret>.<CA pin>"))
		return
	}
	key, err := pki.HashCSR([]byte(req.CSR))
	if err != nil {
		c.fail(g, openai.BadRequest("csr", openai.CodeInvalidValue, "csr: %s", err))
		return
	}
	ctx, cancel := context.WithTimeout(g.Request.Context(), joinTimeout)
	defer cancel()
	select {
	case c.joins <- struct{}{}:
		defer func() { <-c.joins }()
	case <-ctx.Done():
		c.fail(g, openai.Unavailable("busy", 5*time.Second, "too many devices join at the same time: try again"))
		return
	}
	var cert []byte
	dev, err := c.store.ConsumeJoinToken(ctx, store.Join{Token: token, Key: key, CertLife: c.o.DeviceLife}, func(d store.Device) (err error) {
		peer := pki.Peer{Role: pki.RoleEdge, Name: d.ID, Tenant: d.TenantID}
		cert, err = c.auth.SignCSR([]byte(req.CSR), pki.Spec{Peer: peer, Life: c.o.DeviceLife})
		return err
	})
	if err != nil {
		c.fail(g, joinError(err))
		return
	}
	c.o.Log.Info("device joined", "device", dev.ID, "tenant", dev.TenantID, "name", dev.Name)
	pub, _ := c.signer.Public().(ed25519.PublicKey)
	noStore(g)
	reply(g, http.StatusOK, JoinReply{
		Certificate: string(cert), CA: string(c.auth.CertPEM()), DeviceID: dev.ID, TenantID: dev.TenantID, SnapshotKey: pub,
	})
}

func joinError(err error) error {
	refused := func(status int, code, message string) error {
		return &openai.Error{Status: status, Type: openai.TypeAuthentication, Code: code, Param: "token", NoRetry: true, Message: message, Cause: err}
	}
	switch {
	case errors.Is(err, store.ErrTokenUnknown):
		return refused(http.StatusUnauthorized, "invalid_join_token", "the join token is not valid here")
	case errors.Is(err, store.ErrTokenUsed):
		return refused(http.StatusConflict, "join_token_used", "the join token has been used: a token is for one device")
	case errors.Is(err, store.ErrTokenExpired):
		return refused(http.StatusUnauthorized, "join_token_expired", "the join token has expired")
	case errors.Is(err, tenants.ErrTenantSuspended):
		return refused(http.StatusForbidden, "tenant_suspended", "the tenant is suspended")
	}
	return err
}

func forbidden(code, message string) error {
	return &openai.Error{Status: http.StatusForbidden, Type: openai.TypePermission, Code: code, NoRetry: true, Message: message}
}

// device returns who holds the connection's certificate, which must be a
// device of a tenant that exists.
func (c *Control) device(g *gin.Context) (pki.Peer, *tenants.Index, error) {
	peer, err := pki.PeerOf(g.Request.TLS)
	switch {
	case errors.Is(err, pki.ErrNoCertificate):
		return peer, nil, &openai.Error{Status: http.StatusUnauthorized, Type: openai.TypeAuthentication, Code: "certificate_required",
			NoRetry: true, Message: "this path is for devices: a client certificate is needed, over TLS"}
	case err != nil || peer.Role != pki.RoleEdge:
		return peer, nil, forbidden("bad_certificate", "the client certificate is not a device's")
	}
	x := c.Index()
	if x == nil {
		return peer, nil, openai.Unavailable("not_ready", 2*time.Second, "the tenants have not been loaded yet")
	}
	if x.Tenant(peer.Tenant) == nil {
		return peer, nil, forbidden("unknown_tenant", "the device's tenant does not exist here")
	}
	c.seen.note(peer.Name, time.Now())
	return peer, x, nil
}

func (c *Control) snapshot(g *gin.Context) {
	peer, x, err := c.device(g)
	if err != nil {
		c.fail(g, err)
		return
	}
	s, err := c.deviceSnapshot(x, peer.Tenant)
	if err != nil {
		c.fail(g, openai.Internal(err))
		return
	}
	h := g.Writer.Header()
	h.Set("ETag", s.etag)
	h.Set("Cache-Control", "private, no-cache")
	if matches(g.Request.Header.Values("If-None-Match"), s.etag) {
		g.Status(http.StatusNotModified)
		g.Writer.WriteHeaderNow()
		return
	}
	h.Set("Content-Type", "application/json")
	g.Writer.WriteHeader(http.StatusOK)
	_, _ = g.Writer.Write(s.envelope) // the device may be gone
}

// matches reports whether If-None-Match names the tag (RFC 9110 13.1.2, weak
// comparison).
func matches(fields []string, etag string) bool {
	for _, f := range fields {
		for _, t := range strings.Split(f, ",") {
			if t = strings.TrimPrefix(strings.TrimSpace(t), "W/"); t == etag || t == "*" {
				return true
			}
		}
	}
	return false
}

// usage takes a batch of ledger rows. Tenant and device are the certificate's.
// Rows are in the ledger when the answer is sent; with the database away the
// device keeps them.
func (c *Control) usage(g *gin.Context) {
	peer, x, err := c.device(g)
	if err != nil {
		c.fail(g, err)
		return
	}
	body, err := readBody(g, tenants.MaxUsageBytes)
	if err != nil {
		c.fail(g, err)
		return
	}
	now := time.Now()
	rows, rejected, err := tenants.DecodeUsage(body, peer.Tenant, peer.Name, now)
	if err != nil {
		c.fail(g, openai.BadRequest("", openai.CodeInvalidJSON, "%s", err))
		return
	}
	rows, rejected = c.settle(rows, rejected, x)
	ctx, cancel := context.WithTimeout(g.Request.Context(), callTimeout)
	defer cancel()
	res, err := c.ledger.Insert(ctx, rows)
	if err != nil {
		c.fail(g, err)
		return
	}
	for i := range rows {
		if rows[i].KeyID != "" {
			c.used.note(rows[i].KeyID, rows[i].StartedAt)
		}
	}
	reply(g, http.StatusOK, tenants.UsageReply{Accepted: res.Inserted, Duplicates: res.Duplicates, Rejected: rejected})
}

// settle prices rows and takes out those that name a key of another tenant or
// cannot be priced. rejected are the rows of the batch that are out already.
func (c *Control) settle(rows []tenants.UsageRecord, rejected []tenants.RejectedRow, x *tenants.Index) ([]tenants.UsageRecord, []tenants.RejectedRow) {
	book, err := price.NewBook(x.Snapshot().Prices)
	if err != nil {
		c.o.Log.Error("price book refused, device usage is not charged", "error", err)
		book, _ = price.NewBook(nil) // an empty book has nothing to refuse
	}
	out := make(map[int]bool, len(rejected))
	for _, r := range rejected {
		out[r.Index] = true
	}
	kept, at := rows[:0], -1
	for i := range rows {
		for at++; out[at]; at++ { // the row's place in the batch
		}
		r := rows[i]
		bad := tenants.RejectedRow{Index: at, AttemptID: r.AttemptID}
		if id, err := x.LookupID(r.KeyID, r.StartedAt); err == nil && id.TenantID != r.TenantID {
			bad.Field, bad.Problem = "key_id", "not a key of this tenant"
		} else if err := c.o.Billing.Settle(&r, book); err != nil {
			bad.Problem = err.Error()
		} else {
			kept = append(kept, r)
			continue
		}
		rejected = append(rejected, bad)
	}
	return kept, rejected
}
