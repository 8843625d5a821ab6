package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirhq/weir/tenants"
)

const day = 24 * time.Hour

// epoch is where PostgreSQL's dates and times begin.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// dayOf returns the partition of a row: the UTC day inside its attempt id, so
// that a replay, or another gateway's answer, meets the first copy even if its
// times differ; else the day on which it started. An id that is far from the
// start is no time at all.
func dayOf(attempt uuid.UUID, started time.Time) time.Time {
	t := started.UTC()
	if ms, ok := tenants.Minted(attempt); ok {
		if minted := time.UnixMilli(ms).UTC(); minted.Sub(t).Abs() <= day {
			t = minted
		}
	}
	return t.Truncate(day)
}

// EnsureDays makes the partitions from one day to another, both included, so
// that no request has to wait for them.
func (s *Store) EnsureDays(ctx context.Context, from, to time.Time) error {
	var days []time.Time
	for d := from.UTC().Truncate(day); !d.After(to); d = d.Add(day) {
		days = append(days, d)
	}
	if err := s.ensureDays(ctx, days); err != nil {
		return fmt.Errorf("make ledger partitions: %w", err)
	}
	return nil
}

func (s *Store) ensureDays(ctx context.Context, days []time.Time) error {
	for _, d := range days {
		n := d.Unix() / int64(day/time.Second)
		s.mu.Lock()
		known := s.days[n]
		s.mu.Unlock()
		if known {
			continue
		}
		if _, err := s.pool.Exec(ctx, `select weir.ensure_usage_day($1)`, d); err != nil {
			return err
		}
		s.mu.Lock()
		s.days[n] = true
		s.mu.Unlock()
	}
	return nil
}

// forgetDays makes the next write look for its partitions again, after
// retention or a restored backup has taken one away.
func (s *Store) forgetDays(err error) {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "23514" { // no partition for the row
		s.mu.Lock()
		clear(s.days)
		s.mu.Unlock()
	}
}

// DropBefore drops the partitions of days before that of t and returns how
// many. It holds rows of no other day; memory does not grow with the rows. t
// must be further back than tenants.MaxRowAge, or a device's late copies of
// dropped rows would count again.
func (s *Store) DropBefore(ctx context.Context, t time.Time) (n int, err error) {
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		// The parent is locked for an instant; rather later than behind a long query.
		if _, err := tx.Exec(ctx, `set local lock_timeout = '2s'`); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `select weir.drop_usage_days($1)`, t.UTC().Truncate(day)).Scan(&n)
	})
	if err != nil {
		return 0, fmt.Errorf("drop old ledger partitions: %w", err)
	}
	if n > 0 {
		s.mu.Lock()
		clear(s.days)
		s.mu.Unlock()
	}
	return n, nil
}

// PruneSums deletes sums by minute and by hour before the given times.
func (s *Store) PruneSums(ctx context.Context, minutes, hours time.Time) error {
	if _, err := s.pool.Exec(ctx, `delete from weir.usage_minute where at < $1`, minutes); err != nil {
		return fmt.Errorf("prune sums by minute: %w", err)
	}
	if _, err := s.pool.Exec(ctx, `delete from weir.usage_hour where at < $1`, hours); err != nil {
		return fmt.Errorf("prune sums by hour: %w", err)
	}
	return nil
}
