package admit

import (
	"context"

	"github.com/weirhq/weir/tenants/quota"
)

// countShadow takes in what limits in shadow would have refused.
func (a *Admitter) countShadow() {
	a.mu.Lock()
	defer a.mu.Unlock()
	fresh := map[string]int64{}
	a.book.All(func(_ string, account *quota.Account) { account.Shadowed(fresh) })
	for limit, n := range fresh {
		a.meter.shadow.Add(float64(n))
		a.shadowed[limit] += n
	}
}

// tellShadow tells the store. What it does not take stays for the next time.
func (a *Admitter) tellShadow(ctx context.Context) error {
	a.mu.Lock()
	told := a.shadowed
	a.shadowed = map[string]int64{}
	a.mu.Unlock()
	if len(told) == 0 {
		return nil
	}
	err := a.o.Leases.CountShadow(ctx, told)
	if err == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for limit, n := range told {
		a.shadowed[limit] += n
	}
	return err
}
