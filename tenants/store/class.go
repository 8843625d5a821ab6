package store

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
)

// Class is an SLO class as the admin API shows it. Zero durations mean no
// target or no bound.
type Class struct {
	Name                 string  `json:"name"`
	TTFTMillis           int64   `json:"ttft_ms" doc:"target for the first token; 0: none"`
	TPOTMillis           int64   `json:"tpot_ms" doc:"target per output token; 0: none"`
	E2EMillis            int64   `json:"e2e_ms" doc:"target for the whole answer; 0: none"`
	Band                 int     `json:"band" doc:"0 is served first"`
	Weight               float64 `json:"weight"`
	Sheddable            bool    `json:"sheddable"`
	MaxQueueMillis       int64   `json:"max_queue_ms" doc:"0: no bound of its own"`
	EscalationsPerMinute int64   `json:"escalations_per_minute" doc:"of each tenant; 0: no limit"`
	DefaultDeadlineMs    int64   `json:"default_deadline_ms" doc:"0: none"`
	Default              bool    `json:"default" doc:"used where a request names no class"`
}

// NewClass is a class to be created.
type NewClass struct {
	Name                 string   `json:"name" need:"true" example:"gold" doc:"1 to 128 of a-z0-9._-"`
	TTFTMillis           int64    `json:"ttft_ms" example:"300"`
	TPOTMillis           int64    `json:"tpot_ms" example:"40"`
	E2EMillis            int64    `json:"e2e_ms" example:"8000"`
	Band                 *int     `json:"band" example:"3" doc:"default 1; 0 is served first"`
	Weight               *float64 `json:"weight" example:"1.5" doc:"default 1"`
	Sheddable            bool     `json:"sheddable" example:"true"`
	MaxQueueMillis       int64    `json:"max_queue_ms" example:"2000"`
	EscalationsPerMinute int64    `json:"escalations_per_minute" example:"30"`
	DefaultDeadlineMs    int64    `json:"default_deadline_ms" example:"20000"`
	Default              bool     `json:"default" example:"true"`
}

// ClassChange changes the members that are given.
type ClassChange struct {
	TTFTMillis           *int64   `json:"ttft_ms" example:"300"`
	TPOTMillis           *int64   `json:"tpot_ms" example:"40"`
	E2EMillis            *int64   `json:"e2e_ms" example:"8000"`
	Band                 *int     `json:"band" example:"3"`
	Weight               *float64 `json:"weight" example:"1.5"`
	Sheddable            *bool    `json:"sheddable" example:"true"`
	MaxQueueMillis       *int64   `json:"max_queue_ms" example:"2000"`
	EscalationsPerMinute *int64   `json:"escalations_per_minute" example:"30"`
	DefaultDeadlineMs    *int64   `json:"default_deadline_ms" example:"20000"`
	Default              *bool    `json:"default" example:"true"`
}

// Bounds of classes.
const (
	maxMillis      = 24 * 3600 * 1000
	maxBand        = 15
	maxEscalations = 1_000_000
)

func (c Class) check() error {
	ok := c.Name != "" && len(c.Name) <= maxText
	for i := 0; i < len(c.Name); i++ {
		b := c.Name[i]
		ok = ok && ('a' <= b && b <= 'z' || '0' <= b && b <= '9' || b == '.' || b == '_' || b == '-')
	}
	if !ok {
		return badField("name", "want 1 to %d of a-z0-9._-", maxText)
	}
	for _, m := range []struct {
		field      string
		value, top int64
	}{
		{"ttft_ms", c.TTFTMillis, maxMillis}, {"tpot_ms", c.TPOTMillis, maxMillis}, {"e2e_ms", c.E2EMillis, maxMillis},
		{"max_queue_ms", c.MaxQueueMillis, maxMillis}, {"default_deadline_ms", c.DefaultDeadlineMs, maxMillis},
		{"escalations_per_minute", c.EscalationsPerMinute, maxEscalations}, {"band", int64(c.Band), maxBand},
	} {
		if m.value < 0 || m.value > m.top {
			return badField(m.field, "want 0 to %d", m.top)
		}
	}
	return checkWeight(&c.Weight)
}

const classColumns = `name, ttft_ms, tpot_ms, e2e_ms, band, weight, sheddable, max_queue_ms, escalations_per_minute, default_deadline_ms, is_default`

func scanClassRow(r pgx.CollectableRow) (c Class, err error) {
	err = r.Scan(&c.Name, &c.TTFTMillis, &c.TPOTMillis, &c.E2EMillis, &c.Band, &c.Weight, &c.Sheddable, &c.MaxQueueMillis,
		&c.EscalationsPerMinute, &c.DefaultDeadlineMs, &c.Default)
	return c, err
}

func (c Class) args() []any {
	return []any{c.Name, c.TTFTMillis, c.TPOTMillis, c.E2EMillis, c.Band, c.Weight, c.Sheddable, c.MaxQueueMillis,
		c.EscalationsPerMinute, c.DefaultDeadlineMs, c.Default}
}

// CreateClass adds a class. A new default takes the place of the old one.
func (s *Store) CreateClass(ctx context.Context, n NewClass) (Class, error) {
	c := Class{Name: n.Name, TTFTMillis: n.TTFTMillis, TPOTMillis: n.TPOTMillis, E2EMillis: n.E2EMillis, Band: 1, Weight: 1,
		Sheddable: n.Sheddable, MaxQueueMillis: n.MaxQueueMillis, EscalationsPerMinute: n.EscalationsPerMinute,
		DefaultDeadlineMs: n.DefaultDeadlineMs, Default: n.Default}
	set(&c.Band, n.Band)
	set(&c.Weight, n.Weight)
	if err := c.check(); err != nil {
		return Class{}, err
	}
	if err := s.oneDefault(ctx, c); err != nil {
		return Class{}, err
	}
	return one(ctx, s, "create SLO class", scanClassRow, `insert into weir.slo_classes (`+classColumns+`)
		values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) returning `+classColumns, c.args()...)
}

// UpdateClass changes c, which the caller has read in the same Edit.
func (s *Store) UpdateClass(ctx context.Context, c Class, n ClassChange) (Class, error) {
	set(&c.TTFTMillis, n.TTFTMillis)
	set(&c.TPOTMillis, n.TPOTMillis)
	set(&c.E2EMillis, n.E2EMillis)
	set(&c.Band, n.Band)
	set(&c.Weight, n.Weight)
	set(&c.Sheddable, n.Sheddable)
	set(&c.MaxQueueMillis, n.MaxQueueMillis)
	set(&c.EscalationsPerMinute, n.EscalationsPerMinute)
	set(&c.DefaultDeadlineMs, n.DefaultDeadlineMs)
	set(&c.Default, n.Default)
	if err := c.check(); err != nil {
		return Class{}, err
	}
	if err := s.oneDefault(ctx, c); err != nil {
		return Class{}, err
	}
	return one(ctx, s, "update SLO class", scanClassRow, `update weir.slo_classes set (`+classColumns+`) =
		($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) where name = $1 returning `+classColumns, c.args()...)
}

func set[T any](v *T, to *T) {
	if to != nil {
		*v = *to
	}
}

func (s *Store) oneDefault(ctx context.Context, c Class) error {
	if !c.Default {
		return nil
	}
	_, err := s.db.Exec(ctx, `update weir.slo_classes set is_default = false where is_default and name <> $1`, c.Name)
	return wrap("change the default SLO class", err)
}

// ClassByName returns one class.
func (s *Store) ClassByName(ctx context.Context, name string) (Class, error) {
	return one(ctx, s, "read SLO class", scanClassRow, `select `+classColumns+` from weir.slo_classes where name = $1`+s.lock, name)
}

// Classes lists classes by name.
func (s *Store) Classes(ctx context.Context, p Page) ([]Class, error) {
	return list(ctx, s, "list SLO classes", scanClassRow,
		`select `+classColumns+` from weir.slo_classes where name > $1 order by name limit $2`, p.After, p.limit())
}

// ErrInUse says that others refer to the object.
var ErrInUse = errors.New("still in use")

// DeleteClass removes a class that no key, limit or policy names. The error
// wraps ErrInUse when one does.
func (s *Store) DeleteClass(ctx context.Context, name string) error {
	var used bool
	err := s.db.QueryRow(ctx, `select exists (select from weir.api_keys where state = 'active' and $1 = any (classes))
		or exists (select from weir.limits where class = $1) or exists (select from weir.policies where class = $1)`, name).Scan(&used)
	if err == nil && used {
		err = ErrInUse
	}
	if err != nil {
		return wrap("delete SLO class", err)
	}
	_, err = one(ctx, s, "delete SLO class", scanClassRow, `delete from weir.slo_classes where name = $1 returning `+classColumns, name)
	return err
}
