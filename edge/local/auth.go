package local

import (
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/weirhq/weir/edge/roster"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
)

// caller is who a request comes from. KeyID is empty for the device's own,
// anonymous use.
type caller struct {
	tenants.Identity
	view *roster.View // nil only for anonymous use before the first snapshot
}

// authenticate checks the API key against the snapshot. The cloud is not
// asked, so that it works offline.
func (s *Server) authenticate(r *http.Request) (caller, error) {
	view := s.opt.Roster.View()
	key, given := bearer(r)
	// OpenAI's clients always send some key; only text of Weir's form is one.
	if !given || (s.opt.AllowAnonymous && !strings.HasPrefix(key, "wk_")) {
		if s.opt.AllowAnonymous {
			return caller{tenants.Identity{TenantID: s.opt.TenantID}, view}, nil
		}
		return caller{}, openai.Unauthorized("an API key is needed: send Authorization: Bearer wk_...")
	}
	if view == nil {
		return caller{}, openai.Unavailable("no_snapshot", 2*time.Second,
			"this edge node has not got its tenant's keys from the cloud yet")
	}
	id, err := view.Lookup(key, s.opt.Now())
	if err != nil {
		return caller{}, keyError(err)
	}
	return caller{id, view}, nil
}

func bearer(r *http.Request) (key string, given bool) {
	h := r.Header.Get("Authorization")
	scheme, key, _ := strings.Cut(h, " ")
	if h == "" || !strings.EqualFold(scheme, "Bearer") {
		return "", h != ""
	}
	return strings.TrimSpace(key), true
}

func keyError(err error) error {
	switch {
	case errors.Is(err, tenants.ErrSnapshotExpired):
		return openai.Unavailable("snapshot_expired", 5*time.Second,
			"this edge node has been away from its cloud for too long to check keys")
	case errors.Is(err, tenants.ErrTenantSuspended):
		return &openai.Error{Status: http.StatusForbidden, Type: openai.TypePermission, Code: "tenant_suspended",
			Message: "the tenant is suspended", NoRetry: true}
	case errors.Is(err, tenants.ErrKeyExpired):
		return openai.Unauthorized("the API key has expired")
	case errors.Is(err, tenants.ErrKeyRevoked):
		return openai.Unauthorized("the API key is revoked")
	}
	return openai.Unauthorized("the API key is not valid here")
}
