package ledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirhq/weir/tenants"
)

// Store writes the ledger. It is safe for concurrent use.
type Store struct {
	pool *pgxpool.Pool

	mu   sync.Mutex
	days map[int64]bool // partitions known to exist, by days since 1970
}

// NewStore returns a Store on the connections of pool.
func NewStore(pool *pgxpool.Pool) *Store {
	return &Store{pool: pool, days: make(map[int64]bool)}
}

// Result tells what became of rows that were written.
type Result struct {
	Inserted   int
	Duplicates int // in the ledger already, with the same tenant and device
	// Twice are the duplicates that are no replay: another answer to the same
	// attempt stands in the ledger, and nobody pays for this one.
	Twice []tenants.UsageRecord
}

// Sink writes a batch of rows, all or none. Store is one.
type Sink interface {
	Insert(context.Context, []tenants.UsageRecord) (Result, error)
}

// ErrBadRow marks rows that the ledger can never hold; trying again is useless.
var ErrBadRow = errors.New("row cannot be written to the ledger")

// Insert writes rows and their sums by minute and hour in one transaction, all
// or none. A row whose attempt, tenant and device are in the ledger already
// changes nothing and counts as a duplicate. The error wraps ErrBadRow when a
// row is at fault.
//
// Most rows come once. So they are copied straight into the ledger, whose key
// refuses the whole batch when one is there already; only then is it asked
// which, and the others are copied.
func (s *Store) Insert(ctx context.Context, rows []tenants.UsageRecord) (Result, error) {
	var res Result
	lines, err := linesOf(rows)
	if err == nil {
		lines = res.once(lines)
	}
	for err == nil && len(lines) > 0 {
		if err = s.insertNew(ctx, lines); err == nil {
			break
		}
		lines, err = s.rest(ctx, lines, err, &res)
	}
	if err != nil {
		s.forgetDays(err)
		return Result{}, fmt.Errorf("write ledger: %w", classify(err))
	}
	res.Inserted, res.Duplicates = len(lines), len(rows)-len(lines)
	return res, nil
}

// once returns the lines with each key once: of those with the same key the
// first stands.
func (r *Result) once(lines []line) []line {
	out := lines[:0]
	for _, l := range lines {
		switch last := len(out) - 1; {
		case last < 0 || out[last].compare(&l) != 0:
			out = append(out, l)
		case !out[last].replays(&l):
			r.Twice = append(r.Twice, *l.row)
		}
	}
	return out
}

// rest returns the lines to try again after they were refused together: those
// that the ledger does not hold. Where that is no reason, it returns the
// refusal.
func (s *Store) rest(ctx context.Context, lines []line, refusal error, res *Result) ([]line, error) {
	if code(refusal) != "23505" {
		return nil, refusal
	}
	missing, err := s.missing(ctx, lines, res)
	if err == nil && len(missing) == len(lines) {
		err = refusal
	}
	return missing, err
}

// insertNew writes lines of which none is in the ledger.
func (s *Store) insertNew(ctx context.Context, lines []line) error {
	sums, err := sum(lines)
	if err != nil {
		return err
	}
	if err := s.ensureDays(ctx, daysOf(lines)); err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if err := copyLines(ctx, tx.Conn(), "weir.usage_ledger", lines); err != nil {
			return err
		}
		return count(ctx, tx, sums, epochsOf(lines))
	})
}

func copyLines(ctx context.Context, conn *pgx.Conn, table string, lines []line) error {
	_, err := conn.PgConn().CopyFrom(ctx, bytes.NewReader(encode(lines)), `copy `+table+` (`+rowColumns+`) from stdin (format binary)`)
	return err
}

// count adds sums, and rows that come late to budgets whose leases are closed.
// Whoever closes a lease by the ledger's sum holds CloseLock meanwhile. It is
// taken by a statement of its own, because a statement that waits for it does
// not see what the closer has done: no row is counted by both or by neither.
func count(ctx context.Context, tx pgx.Tx, s sums, epochs []string) error {
	late := false
	b := &pgx.Batch{}
	b.Queue(addMinutesSQL, s.minutes.args()...)
	b.Queue(addHoursSQL, s.hours.args()...)
	b.Queue(`select pg_advisory_xact_lock_shared($1)`, CloseLock)
	b.Queue(`select exists (select from weir.budget_leases where final and epoch = any($1))`, epochs).
		QueryRow(func(row pgx.Row) error { return row.Scan(&late) })
	if err := tx.SendBatch(ctx, b).Close(); err != nil || !late {
		return err
	}
	return Recount(ctx, tx, epochs, false)
}

// missing returns the lines that the ledger does not hold. Of the others, res
// gets those that are no replays.
func (s *Store) missing(ctx context.Context, lines []line, res *Result) ([]line, error) {
	out := make([]line, 0, len(lines))
	rows, err := s.pool.Query(ctx, missingSQL, keysOf(lines)...)
	if err != nil {
		return nil, err
	}
	var at int64
	var twice bool
	_, err = pgx.ForEachRow(rows, []any{&at, &twice}, func() error {
		if l := lines[at-1]; twice {
			res.Twice = append(res.Twice, *l.row)
		} else {
			out = append(out, l)
		}
		return nil
	})
	return out, err
}

// code returns the SQLSTATE of an error of the database.
func code(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// classify tells errors of the data (SQLSTATE classes 22 and 23) from those of
// the database, which pass.
func classify(err error) error {
	if c := code(err); strings.HasPrefix(c, "22") || c == "23502" {
		return fmt.Errorf("%w: %w", ErrBadRow, err)
	}
	return err
}

// BareCopy copies rows into a table of the ledger's columns and does nothing
// else: what benchmarks compare Insert with.
func BareCopy(ctx context.Context, conn *pgx.Conn, table string, rows []tenants.UsageRecord) error {
	lines, err := linesOf(rows)
	if err != nil {
		return err
	}
	return copyLines(ctx, conn, pgx.Identifier{table}.Sanitize(), lines)
}
