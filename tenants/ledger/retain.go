package ledger

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/tenants"
)

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

// BareCopy copies rows into a table of the ledger's columns and does nothing
// else: what benchmarks compare Insert with.
func BareCopy(ctx context.Context, conn *pgx.Conn, table string, rows []tenants.UsageRecord) error {
	data, _, err := encode(rows)
	if err != nil {
		return err
	}
	_, err = conn.PgConn().CopyFrom(ctx, bytes.NewReader(data), `copy `+pgx.Identifier{table}.Sanitize()+` (`+stageColumns+`) from stdin (format binary)`)
	return err
}
