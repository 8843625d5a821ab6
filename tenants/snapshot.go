package tenants

import (
	"encoding/json"
	"time"
)

// State says whether a tenant or a key may be used.
type State string

// States of tenants and keys. An active key may still have expired.
const (
	Active    State = "active"
	Suspended State = "suspended" // tenants: may come back
	Revoked   State = "revoked"   // keys: never comes back
)

// Tier says which side produced an answer's last token.
type Tier string

// The two tiers.
const (
	Edge  Tier = "edge"
	Cloud Tier = "cloud"
)

// Snapshot is all that a gateway or a device needs to authenticate, price and
// limit requests while the database is away. A device's snapshot holds its own
// tenant only. It travels signed (Sign, Verify).
type Snapshot struct {
	Version   int64     `json:"version"` // grows with every change of configuration
	IssuedAt  time.Time `json:"issued_at"`
	ExpiresAt time.Time `json:"expires_at"` // no key is accepted at or after it
	Tenants   []Tenant  `json:"tenants"`
	Keys      []KeyInfo `json:"keys"`
	Models    []Model   `json:"models"`
	Classes   []Class   `json:"classes"`
	Prices    []Price   `json:"prices"`
	Limits    []Limit   `json:"limits,omitempty"`
	Policies  []Policy  `json:"policies,omitempty"`
}

// Tenant is one customer.
type Tenant struct {
	ID     string  `json:"id"`
	Name   string  `json:"name"`
	State  State   `json:"state"`
	Weight float64 `json:"weight,omitempty"` // share in the fair queue; 0 stands for 1
	// Strict refuses rather than overruns when a budget or its lease cannot be
	// renewed; otherwise the last known remainder is used up first.
	Strict bool `json:"strict,omitempty"`
}

// KeyInfo is what is known of an API key: never its secret.
type KeyInfo struct {
	ID       string `json:"id"`
	TenantID string `json:"tenant_id"`
	// Hashes holds the current secret and, during a rotation's grace, the old.
	Hashes    []SecretHash `json:"hashes"`
	State     State        `json:"state"`
	ExpiresAt time.Time    `json:"expires_at,omitzero"` // zero: never
	Scopes    []string     `json:"scopes,omitempty"`
	Models    []string     `json:"models,omitempty"`  // allowed; none: all
	Classes   []string     `json:"classes,omitempty"` // allowed; none: all
}

// SecretHash is the hash of one secret of a key.
type SecretHash struct {
	SHA256   Hash      `json:"sha256"`
	NotAfter time.Time `json:"not_after,omitzero"` // zero: as long as the key
}

// Model is a name that applications may ask for.
type Model struct {
	Name          string `json:"name"`
	Tier          Tier   `json:"tier,omitempty"` // empty: either, by cascade
	ContextTokens int    `json:"context_tokens,omitempty"`
	Cascade       bool   `json:"cascade,omitempty"`
	// Continues says that the model goes on with a begun answer: a last
	// assistant message with continue_final_message.
	Continues bool `json:"continues,omitempty"`
}

// Class is an SLO class. Zero durations mean no target or no bound.
type Class struct {
	Name                 string  `json:"name"`
	TTFTMillis           int64   `json:"ttft_ms,omitempty"`
	TPOTMillis           int64   `json:"tpot_ms,omitempty"`
	E2EMillis            int64   `json:"e2e_ms,omitempty"`
	Band                 int     `json:"band"`             // 0 is served first
	Weight               float64 `json:"weight,omitempty"` // 0 stands for 1
	Sheddable            bool    `json:"sheddable,omitempty"`
	MaxQueueMillis       int64   `json:"max_queue_ms,omitempty"`
	EscalationsPerMinute int64   `json:"escalations_per_minute,omitempty"` // 0: no own limit
	DefaultDeadlineMs    int64   `json:"default_deadline_ms,omitempty"`
	Default              bool    `json:"default,omitempty"` // used where a request names none
}

// Allowance is the class's own limit of escalations, which each tenant has; ok
// is false for a class without one.
func (c *Class) Allowance(tenantID string) (l Limit, ok bool) {
	return Limit{ID: "class/" + c.Name + "/escalations", TenantID: tenantID, Class: c.Name,
		Kind: LimitEscalations, Window: PerMinute, Limit: c.EscalationsPerMinute}, c.EscalationsPerMinute > 0
}

// Price is one row of the price book: micro-dollars per million tokens, in
// force from EffectiveFrom until a later row for the same tier and model.
type Price struct {
	Version       int64     `json:"version"`
	Tier          Tier      `json:"tier"`
	Model         string    `json:"model"` // "*" prices every model of the tier that has no row
	EffectiveFrom time.Time `json:"effective_from"`
	Input         int64     `json:"input"`        // micro-dollars per 1,000,000 uncached prompt tokens
	CachedInput   int64     `json:"cached_input"` // micro-dollars per 1,000,000 cached prompt tokens
	Output        int64     `json:"output"`       // micro-dollars per 1,000,000 generated tokens
}

// LimitKind is what a limit counts.
type LimitKind string

// What limits count. Money is in nano-dollars.
const (
	LimitRequests    LimitKind = "requests"
	LimitInput       LimitKind = "input_tokens"
	LimitOutput      LimitKind = "output_tokens"
	LimitTotal       LimitKind = "total_tokens"
	LimitCost        LimitKind = "cost_nanousd"
	LimitEscalations LimitKind = "escalations"
	LimitConcurrent  LimitKind = "concurrent"
)

// LimitWindow is over which time a limit counts.
type LimitWindow string

// Windows of limits. A minute is a rate; days and months are UTC budgets.
const (
	PerMinute LimitWindow = "minute"
	PerDay    LimitWindow = "day"
	PerMonth  LimitWindow = "month"
	AtOnce    LimitWindow = "at_once" // concurrency
)

// Limit is one quota. Empty KeyID, Model, Tier and Class match all; the KeyID
// "*" counts each key of the tenant apart.
type Limit struct {
	ID       string      `json:"id"`
	TenantID string      `json:"tenant_id"`
	KeyID    string      `json:"key_id,omitempty"`
	Model    string      `json:"model,omitempty"`
	Tier     Tier        `json:"tier,omitempty"`
	Class    string      `json:"class,omitempty"`
	Kind     LimitKind   `json:"kind"`
	Window   LimitWindow `json:"window"`
	Limit    int64       `json:"limit"`
	Burst    int64       `json:"burst,omitempty"`  // rates only: 0 stands for Limit
	Shadow   bool        `json:"shadow,omitempty"` // count what would be refused, refuse nothing
}

// Policy is how a tenant's requests, or those of one class, are cascaded.
type Policy struct {
	TenantID  string   `json:"tenant_id"`
	Class     string   `json:"class,omitempty"` // empty: every class without its own
	Mode      string   `json:"mode,omitempty"`  // as in X-Weir-Mode; empty: auto
	Threshold *float64 `json:"threshold,omitempty"`
	// Spec is the cascade's own policy object, which this package does not read.
	Spec json.RawMessage `json:"spec,omitempty"`
}
