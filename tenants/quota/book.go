package quota

import (
	"fmt"
	"sync"
	"time"
)

// Book holds the accounts of all tenants of a gateway. It is safe for
// concurrent use; each account has its own lock.
type Book struct {
	mu       sync.RWMutex
	accounts map[string]*Account
	peers    int
}

// TenantLimits is what an account is made of.
type TenantLimits struct {
	Limits  []Limit
	Options Options
}

// NewBook returns a book without accounts.
func NewBook() *Book { return &Book{accounts: map[string]*Account{}} }

// Account returns a tenant's account, or nil.
func (b *Book) Account(tenant string) *Account {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.accounts[tenant]
}

// Update makes the book hold exactly these tenants. Accounts that stay keep
// their counters. A tenant whose limits are wrong keeps its former ones (or
// gets no account), and the error names it; the others are updated.
func (b *Book) Update(all map[string]TenantLimits, now time.Time) error {
	var first error
	next := make(map[string]*Account, len(all))
	for tenant, t := range all {
		a, err := b.updated(tenant, t, now)
		if err != nil && first == nil {
			first = fmt.Errorf("tenant %s: %w", tenant, err)
		}
		if a != nil {
			next[tenant] = a
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.accounts = next
	for _, a := range next {
		a.setPeers(b.peers)
	}
	return first
}

// SetPeers says how many gateways share the tenants' rates and slots.
func (b *Book) SetPeers(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.peers = n
	for _, a := range b.accounts {
		a.setPeers(n)
	}
}

func (b *Book) updated(tenant string, t TenantLimits, now time.Time) (*Account, error) {
	old := b.Account(tenant)
	if old == nil {
		return NewAccount(t.Limits, t.Options, now)
	}
	old.setOptions(t.Options)
	return old, old.Update(t.Limits, now)
}

func (a *Account) setOptions(o Options) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.opts.Strict = o.Strict // Leased is for life: wallets depend on it
}

// All calls f for every account, without holding the book.
func (b *Book) All(f func(tenant string, a *Account)) {
	b.mu.RLock()
	accounts := b.accounts
	b.mu.RUnlock()
	for tenant, a := range accounts {
		f(tenant, a)
	}
}

// Expire releases reservations whose deadline has passed, in all accounts, and
// returns how many.
func (b *Book) Expire(now time.Time) int {
	n := 0
	b.All(func(_ string, a *Account) { n += a.Expire(now) })
	return n
}
