// Package price turns tokens into money: the price book with its effective
// dates, the cost of an attempt in nano-dollars, and which outcomes are
// charged at all. It computes only; it reads no clock and does no I/O.
package price

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/weirhq/weir/tenants"
)

// ErrOverflow marks a cost that is not an int64 of nano-dollars, about 9.2
// billion dollars.
var ErrOverflow = errors.New("cost overflows")

// Tokens is what an attempt used. Cached is part of Input.
type Tokens struct{ Input, Cached, Output int64 }

// Cost returns the price of tokens in nano-dollars, rounded half up once.
// Prices are micro-dollars per million tokens, so that tokens times price is
// in thousandths of a nano-dollar; the sum is held in 128 bits. The error is
// ErrOverflow or says which count or price is negative.
func Cost(p tenants.Price, t Tokens) (int64, error) {
	if t.Input < 0 || t.Cached < 0 || t.Output < 0 || t.Cached > t.Input {
		return 0, fmt.Errorf("cost of %d input, %d cached, %d output tokens: want 0 <= cached <= input and output >= 0",
			t.Input, t.Cached, t.Output)
	}
	if p.Input < 0 || p.CachedInput < 0 || p.Output < 0 {
		return 0, fmt.Errorf("price version %d is negative", p.Version)
	}
	var hi, lo uint64
	for _, term := range [...][2]int64{
		{t.Input - t.Cached, p.Input}, {t.Cached, p.CachedInput}, {t.Output, p.Output}, {1, 500},
	} {
		h, l := bits.Mul64(uint64(term[0]), uint64(term[1]))
		var carry uint64
		lo, carry = bits.Add64(lo, l, 0)
		hi += h + carry // three products below 2^126 and 500: cannot wrap
	}
	const divisor = 1000
	if hi >= divisor {
		return 0, ErrOverflow
	}
	q, _ := bits.Div64(hi, lo, divisor)
	if q > math.MaxInt64 {
		return 0, ErrOverflow
	}
	return int64(q), nil
}

// AnyModel is the model of a Price for all models of its tier without a row.
const AnyModel = "*"

// Book finds the price in force. It is immutable.
type Book struct {
	rows map[item][]tenants.Price // by EffectiveFrom
}

type item struct {
	tier  tenants.Tier
	model string
}

// NewBook sorts prices into a book. The error names a row that is negative or
// that shares tier, model and date with another.
func NewBook(prices []tenants.Price) (*Book, error) {
	b := &Book{make(map[item][]tenants.Price)}
	for _, p := range prices {
		if p.Input < 0 || p.CachedInput < 0 || p.Output < 0 {
			return nil, fmt.Errorf("price version %d is negative", p.Version)
		}
		k := item{p.Tier, p.Model}
		b.rows[k] = append(b.rows[k], p)
	}
	for k, rows := range b.rows {
		slices.SortFunc(rows, func(x, y tenants.Price) int { return x.EffectiveFrom.Compare(y.EffectiveFrom) })
		for i := 1; i < len(rows); i++ {
			if rows[i].EffectiveFrom.Equal(rows[i-1].EffectiveFrom) {
				return nil, fmt.Errorf("price versions %d and %d of %s model %q start at the same time",
					rows[i-1].Version, rows[i].Version, k.tier, k.model)
			}
		}
	}
	return b, nil
}

// At returns the price in force for a model at a time, usually the start of
// the attempt. A model's own row goes before AnyModel. Where there is none the
// price is zero with version 0, and ok is false.
func (b *Book) At(tier tenants.Tier, model string, at time.Time) (p tenants.Price, ok bool) {
	for _, name := range [...]string{model, AnyModel} {
		rows := b.rows[item{tier, name}]
		for i := len(rows) - 1; i >= 0; i-- {
			if !rows[i].EffectiveFrom.After(at) {
				return rows[i], true
			}
		}
	}
	return tenants.Price{Tier: tier, Model: model}, false
}
