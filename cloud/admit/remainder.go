package admit

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/weirhq/weir/internal/pki"
	"github.com/weirhq/weir/tenants/quota"
)

// noteRemainders writes down what the tenants' budgets have left.
func (a *Admitter) noteRemainders(now time.Time) error {
	if a.o.Remainders == "" {
		return nil
	}
	left := map[string][]quota.Remainder{}
	a.book.All(func(tenant string, account *quota.Account) {
		if r := account.Remainders(nil, now); len(r) > 0 {
			left[tenant] = r
		}
	})
	if len(left) == 0 {
		return nil
	}
	b, err := json.Marshal(left)
	if err != nil {
		return fmt.Errorf("note budgets: %w", err)
	}
	if err := pki.WriteSecret(a.o.Remainders, b); err != nil {
		return fmt.Errorf("note budgets: %w", err)
	}
	return nil
}

// recallRemainders tells the accounts what the last process noted. The store's
// first answer replaces it.
func (a *Admitter) recallRemainders(now time.Time) error {
	if a.o.Remainders == "" {
		return nil
	}
	b, err := os.ReadFile(a.o.Remainders)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	var left map[string][]quota.Remainder
	if err == nil {
		err = json.Unmarshal(b, &left)
	}
	if err != nil {
		return fmt.Errorf("noted budgets: %w", err)
	}
	for tenant, list := range left {
		account := a.book.Account(tenant)
		if account == nil {
			continue
		}
		for _, r := range list {
			if r.Period == quota.PeriodAt(r.Window, now) {
				account.AssumeRemaining(r.LimitID, r.Remaining, now)
			}
		}
	}
	return nil
}
