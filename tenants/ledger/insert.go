package ledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirhq/weir/tenants"
)

// Store writes and reads the ledger. It is safe for concurrent use.
type Store struct {
	pool *pgxpool.Pool

	mu   sync.Mutex
	days map[int64]bool // partitions known to exist, by days since 1970
}

// NewStore returns a Store on the connections of pool.
func NewStore(pool *pgxpool.Pool) *Store {
	return &Store{pool: pool, days: make(map[int64]bool)}
}

// Result counts what became of rows that were written.
type Result struct {
	Inserted   int
	Duplicates int // in the ledger already, with the same tenant and device
}

// ErrBadRow marks rows that the ledger can never hold; trying again is useless.
var ErrBadRow = errors.New("row cannot be written to the ledger")

// Insert writes rows and their sums by minute and hour in one transaction, all
// or none. A row whose attempt, tenant and device are in the ledger already
// changes nothing and counts as a duplicate. The error wraps ErrBadRow when a
// row is at fault.
func (s *Store) Insert(ctx context.Context, rows []tenants.UsageRecord) (Result, error) {
	if len(rows) == 0 {
		return Result{}, nil
	}
	data, days, err := encode(rows)
	if err != nil {
		return Result{}, err
	}
	if err := s.ensureDays(ctx, days); err != nil {
		return Result{}, fmt.Errorf("write ledger: %w", err)
	}
	n := 0
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) (err error) {
		n, err = write(ctx, tx, data, epochsOf(rows))
		return err
	})
	if err != nil {
		s.forgetDays(err)
		return Result{}, fmt.Errorf("write ledger: %w", classify(err))
	}
	return Result{Inserted: n, Duplicates: len(rows) - n}, nil
}

// write copies the encoded rows into the connection's own stage and moves
// those that are new from there.
func write(ctx context.Context, tx pgx.Tx, data []byte, epochs []string) (inserted int, err error) {
	if _, err := tx.Exec(ctx, stageSQL); err != nil {
		return 0, err
	}
	if _, err := tx.Conn().PgConn().CopyFrom(ctx, bytes.NewReader(data), copySQL); err != nil {
		return 0, err
	}
	// Whoever closes a lease by the ledger's sum waits for rows on their way,
	// and they for it: no row is counted by both or by neither.
	late := false
	err = tx.QueryRow(ctx, `select exists (select from weir.budget_leases where final and epoch = any($1)) from pg_advisory_xact_lock_shared($2)`,
		epochs, CloseLock).Scan(&late)
	if err != nil {
		return 0, err
	}
	err = tx.QueryRow(ctx, moveSQL).Scan(&inserted)
	if err == nil && late && inserted > 0 {
		err = Recount(ctx, tx, epochs, false)
	}
	return inserted, err
}

func epochsOf(rows []tenants.UsageRecord) []string {
	var out []string
	for i := range rows {
		if e := rows[i].NodeEpoch; e != "" && !slices.Contains(out, e) {
			out = append(out, e)
		}
	}
	return out
}

// classify tells errors of the data (SQLSTATE classes 22 and 23) from those of
// the database, which pass.
func classify(err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && (strings.HasPrefix(pg.Code, "22") || pg.Code == "23502") {
		return fmt.Errorf("%w: %w", ErrBadRow, err)
	}
	return err
}

const day = 24 * time.Hour

// dayOf returns the partition of a row: the UTC day inside a UUIDv7 attempt
// id, so that a replay meets its first copy even if its times have changed,
// else the day on which it started. An id that is far from the start is no
// time at all.
func dayOf(attempt uuid.UUID, started time.Time) time.Time {
	t := started.UTC()
	if attempt.Version() == 7 {
		sec, nsec := attempt.Time().UnixTime()
		if minted := time.Unix(sec, nsec).UTC(); minted.Sub(t).Abs() <= day {
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

// Sink writes a batch of rows, all or none. Store is one.
type Sink interface {
	Insert(context.Context, []tenants.UsageRecord) (Result, error)
}

// Stats are counts of a writer of rows since its start.
type Stats struct {
	Queued     int
	Inserted   uint64
	Duplicates uint64
	Lost       uint64 // refused by the database for good
	Failing    bool   // the last write failed
}
