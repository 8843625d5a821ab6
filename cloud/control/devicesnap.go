package control

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sync"

	"github.com/weirhq/weir/tenants"
)

// signedSnapshot is a tenant's snapshot as its devices get it.
type signedSnapshot struct {
	envelope []byte
	etag     string
}

// deviceSnapshots keeps the snapshots signed from one index, because all
// devices of a tenant poll for the same one.
type deviceSnapshots struct {
	mu       sync.Mutex
	index    *tenants.Index
	byTenant map[string]signedSnapshot
}

// deviceSnapshot returns the signed snapshot of one tenant, made of the index.
func (c *Control) deviceSnapshot(x *tenants.Index, tenantID string) (signedSnapshot, error) {
	d := &c.devices
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.index != x {
		d.index, d.byTenant = x, make(map[string]signedSnapshot)
	}
	if s, ok := d.byTenant[tenantID]; ok {
		return s, nil
	}
	envelope, err := only(x.Snapshot(), tenantID).Sign(c.signer)
	if err != nil {
		return signedSnapshot{}, fmt.Errorf("sign snapshot of tenant %s: %w", tenantID, err)
	}
	sum := sha256.Sum256(envelope)
	s := signedSnapshot{envelope, `"` + hex.EncodeToString(sum[:12]) + `"`}
	d.byTenant[tenantID] = s
	return s, nil
}

// only returns what one tenant's devices may know.
func only(all *tenants.Snapshot, tenantID string) *tenants.Snapshot {
	s := &tenants.Snapshot{
		Version: all.Version, IssuedAt: all.IssuedAt, ExpiresAt: all.ExpiresAt,
		Models: all.Models, Classes: all.Classes, Prices: all.Prices,
		Tenants: []tenants.Tenant{}, Keys: []tenants.KeyInfo{},
	}
	for _, t := range all.Tenants {
		if t.ID == tenantID {
			s.Tenants = append(s.Tenants, t)
		}
	}
	for _, k := range all.Keys {
		if k.TenantID == tenantID {
			s.Keys = append(s.Keys, k)
		}
	}
	for _, l := range all.Limits {
		if l.TenantID == tenantID {
			s.Limits = append(s.Limits, l)
		}
	}
	for _, p := range all.Policies {
		if p.TenantID == tenantID {
			s.Policies = append(s.Policies, p)
		}
	}
	return s
}
