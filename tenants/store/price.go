package store

import (
	"context"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/tenants"
)

// NewPrice is a row to be added to the price book. Rows are never changed: the
// ledger names the version that it charged.
type NewPrice struct {
	Tier          tenants.Tier `json:"tier" need:"true" enum:"edge,cloud" example:"cloud"`
	Model         string       `json:"model" need:"true" example:"hub-cloud" doc:"* prices every model of the tier that has no row"`
	EffectiveFrom *time.Time   `json:"effective_from" example:"2099-01-31T00:00:00Z" doc:"default now; not in the past"`
	Input         int64        `json:"input" example:"150000" doc:"micro-dollars per million uncached prompt tokens"`
	CachedInput   int64        `json:"cached_input" example:"30000" doc:"micro-dollars per million cached prompt tokens"`
	Output        int64        `json:"output" example:"600000" doc:"micro-dollars per million generated tokens"`
}

// maxPrice is a million dollars per million tokens.
const maxPrice = 1_000_000_000_000

func (n NewPrice) check(now time.Time) error {
	if n.Tier != tenants.Edge && n.Tier != tenants.Cloud {
		return badField("tier", "want edge or cloud")
	}
	if err := checkNames("model", []string{n.Model}); err != nil {
		return err
	}
	if n.EffectiveFrom != nil && n.EffectiveFrom.Before(now.Add(-time.Minute)) {
		return badField("effective_from", "in the past: what was charged stays as it is")
	}
	for field, v := range map[string]int64{"input": n.Input, "cached_input": n.CachedInput, "output": n.Output} {
		if v < 0 || v > maxPrice {
			return badField(field, "want 0 to %d micro-dollars per million tokens", int64(maxPrice))
		}
	}
	return nil
}

const priceColumns = `version, tier, model, effective_from, input, cached_input, output`

// CreatePrice adds a row to the price book. The error is ErrExists when one of
// the same tier, model and date is there.
func (s *Store) CreatePrice(ctx context.Context, n NewPrice) (tenants.Price, error) {
	if err := n.check(time.Now()); err != nil {
		return tenants.Price{}, err
	}
	return one(ctx, s, "create price", scanPrice, `insert into weir.prices (tier, model, effective_from, input, cached_input, output)
		values ($1, $2, coalesce($3, now()), $4, $5, $6) returning `+priceColumns,
		n.Tier, n.Model, n.EffectiveFrom, n.Input, n.CachedInput, n.Output)
}

// PriceByVersion returns one row of the price book.
func (s *Store) PriceByVersion(ctx context.Context, version int64) (tenants.Price, error) {
	return one(ctx, s, "read price", scanPrice, `select `+priceColumns+` from weir.prices where version = $1`, version)
}

// Prices lists the price book, oldest version first.
func (s *Store) Prices(ctx context.Context, p Page) ([]tenants.Price, error) {
	var after int64
	if p.After != "" {
		var err error
		if after, err = strconv.ParseInt(p.After, 10, 64); err != nil {
			return nil, badField("after", "not a cursor of this list")
		}
	}
	return list(ctx, s, "list prices", scanPrice,
		`select `+priceColumns+` from weir.prices where version > $1 order by version limit $2`, after, p.limit())
}

// Priced reports whether the price book names a model of a tier.
func (s *Store) Priced(ctx context.Context, tier tenants.Tier, model string) (bool, error) {
	return one(ctx, s, "look up price", pgx.RowTo[bool], `select exists (select from weir.prices where tier = $1 and model = $2)`, tier, model)
}
