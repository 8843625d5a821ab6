package tenants

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Why a key was not accepted. Expired, revoked and suspended are told only to
// a caller who holds the right secret.
var (
	ErrUnknownKey      = errors.New("unknown API key")
	ErrKeyExpired      = errors.New("API key has expired")
	ErrKeyRevoked      = errors.New("API key is revoked")
	ErrTenantSuspended = errors.New("tenant is suspended")
	ErrSnapshotExpired = errors.New("tenant snapshot has expired: reconnect to the cloud")
)

var errMalformedKey = fmt.Errorf("%w: an API key looks like wk_<id>_<secret>", ErrMalformed)

// Index answers questions about one snapshot in constant time. It is
// immutable and safe for concurrent use; a new snapshot gets a new Index.
type Index struct {
	snap    *Snapshot
	keys    map[string]entry
	tenants map[string]*Tenant
	models  map[string]*Model
	classes map[string]*Class
}

type entry struct {
	key    *KeyInfo
	tenant *Tenant
}

// Identity is who a request comes from. Key and Tenant point into the
// immutable snapshot.
type Identity struct {
	TenantID string
	KeyID    string
	Key      *KeyInfo
	Tenant   *Tenant
}

// NewIndex checks a snapshot and indexes it. The snapshot must not change
// afterwards.
func NewIndex(s *Snapshot) (*Index, error) {
	x := &Index{
		snap:    s,
		keys:    make(map[string]entry, len(s.Keys)),
		tenants: make(map[string]*Tenant, len(s.Tenants)),
		models:  make(map[string]*Model, len(s.Models)),
		classes: make(map[string]*Class, len(s.Classes)),
	}
	for i := range s.Tenants {
		t := &s.Tenants[i]
		if t.ID == "" || x.tenants[t.ID] != nil {
			return nil, fmt.Errorf("snapshot: tenant %q is empty or twice", t.ID)
		}
		x.tenants[t.ID] = t
	}
	for i := range s.Keys {
		if err := x.addKey(&s.Keys[i]); err != nil {
			return nil, err
		}
	}
	for i := range s.Models {
		x.models[s.Models[i].Name] = &s.Models[i]
	}
	for i := range s.Classes {
		x.classes[s.Classes[i].Name] = &s.Classes[i]
	}
	return x, nil
}

func (x *Index) addKey(k *KeyInfo) error {
	if _, twice := x.keys[k.ID]; twice || !within(k.ID, minID, maxID, isLower) {
		return fmt.Errorf("snapshot: key %q is malformed or twice", k.ID)
	}
	t := x.tenants[k.TenantID]
	if t == nil {
		return fmt.Errorf("snapshot: key %q belongs to unknown tenant %q", k.ID, k.TenantID)
	}
	x.keys[k.ID] = entry{k, t}
	return nil
}

// Snapshot returns what the index was made from.
func (x *Index) Snapshot() *Snapshot { return x.snap }

// Lookup authenticates the text of an API key at the time now. Its error is
// one of ErrMalformed, ErrUnknownKey, ErrKeyExpired, ErrKeyRevoked,
// ErrTenantSuspended and ErrSnapshotExpired. It does not allocate.
func (x *Index) Lookup(key string, now time.Time) (Identity, error) {
	id, secret, ok := split(key, keyPrefix)
	if !ok {
		return Identity{}, errMalformedKey
	}
	e, known := x.keys[id]
	// An unknown id costs one hash too, so that time does not tell ids apart.
	hash := hashText(secret)
	if !known {
		return Identity{}, ErrUnknownKey
	}
	match := -1
	for i := range e.key.Hashes {
		if e.key.Hashes[i].SHA256.equal(hash) {
			match = i
		}
	}
	if match < 0 {
		return Identity{}, ErrUnknownKey
	}
	if past(e.key.Hashes[match].NotAfter, now) {
		return Identity{}, ErrKeyExpired
	}
	return x.admit(e, now)
}

// LookupID checks a key by its id alone, for callers whose device certificate
// already vouches for it. Errors are those of Lookup.
func (x *Index) LookupID(keyID string, now time.Time) (Identity, error) {
	e, ok := x.keys[keyID]
	if !ok {
		return Identity{}, ErrUnknownKey
	}
	return x.admit(e, now)
}

func (x *Index) admit(e entry, now time.Time) (Identity, error) {
	switch {
	case past(x.snap.ExpiresAt, now):
		return Identity{}, ErrSnapshotExpired
	case e.key.State != Active:
		return Identity{}, ErrKeyRevoked
	case past(e.key.ExpiresAt, now):
		return Identity{}, ErrKeyExpired
	case e.tenant.State != Active:
		return Identity{}, ErrTenantSuspended
	}
	return Identity{e.tenant.ID, e.key.ID, e.key, e.tenant}, nil
}

func past(limit, now time.Time) bool { return !limit.IsZero() && !now.Before(limit) }

// Tenant returns a tenant by id, or nil.
func (x *Index) Tenant(id string) *Tenant { return x.tenants[id] }

// Model returns a model by name, or nil.
func (x *Index) Model(name string) *Model { return x.models[name] }

// Class returns an SLO class by name, or nil.
func (x *Index) Class(name string) *Class { return x.classes[name] }

// DefaultClass returns the class for requests that name none: the one marked
// as default and allowed for the key, else the first allowed, else nil.
func (x *Index) DefaultClass(id Identity) *Class {
	var first *Class
	for i := range x.snap.Classes {
		c := &x.snap.Classes[i]
		if !id.MayUseClass(c.Name) {
			continue
		}
		if c.Default {
			return c
		}
		if first == nil {
			first = c
		}
	}
	return first
}

// Policy returns how requests of the tenant and class are cascaded: the
// class's own policy, else the tenant's, else nil.
func (x *Index) Policy(tenantID, class string) *Policy {
	var general *Policy
	for i := range x.snap.Policies {
		p := &x.snap.Policies[i]
		if p.TenantID != tenantID {
			continue
		}
		if p.Class == class {
			return p
		}
		if p.Class == "" {
			general = p
		}
	}
	return general
}

// MayUseModel reports whether the key allows the model. Without a key (a
// device's own anonymous use) and without a list every model is allowed.
func (id Identity) MayUseModel(name string) bool {
	return id.Key == nil || allows(id.Key.Models, name)
}

// MayUseClass reports whether the key allows the SLO class, like MayUseModel.
func (id Identity) MayUseClass(name string) bool {
	return id.Key == nil || allows(id.Key.Classes, name)
}

// ScopeExplain lets a key see signals and candidates' scores. It is the only
// scope.
const ScopeExplain = "explain"

// HasScope reports whether the key carries the scope.
func (id Identity) HasScope(scope string) bool {
	return id.Key != nil && slices.Contains(id.Key.Scopes, scope)
}

func allows(list []string, name string) bool {
	return len(list) == 0 || slices.Contains(list, name)
}
