// Package store keeps tenants, API keys, admin and join tokens and devices in
// PostgreSQL, and loads from it the snapshot that gateways work with. Only
// hashes of secrets reach the database.
package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirhq/weir/tenants"
)

// Errors that a caller decides on. Bad values are *tenants.FieldError.
var (
	ErrNotFound = errors.New("not found")
	ErrExists   = errors.New("exists already")
)

// Store is safe for concurrent use, but for those that View and Edit give.
type Store struct {
	pool *pgxpool.Pool
	db   querier // the pool, or the transaction of View or Edit
	lock string  // " for update" inside Edit: what is read there will be changed
}

// querier is what a pool and a transaction have in common.
type querier interface {
	Begin(ctx context.Context) (pgx.Tx, error)
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

const (
	maxConns         = 8
	connectTimeout   = 3 * time.Second
	statementTimeout = "10s"
)

// Open reads the URL and returns a Store. It does not connect: a database that
// is away is reported by the calls, and found again by them.
func Open(url string) (*Store, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, errors.New("the database URL cannot be parsed: want postgres://user@host/name") // the error may quote it
	}
	cfg.MaxConns = maxConns
	cfg.ConnConfig.ConnectTimeout = connectTimeout
	cfg.ConnConfig.RuntimeParams["statement_timeout"] = statementTimeout
	cfg.ConnConfig.RuntimeParams["application_name"] = "weir-cloud"
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	return &Store{pool: pool, db: pool}, nil
}

// Close ends all connections.
func (s *Store) Close() { s.pool.Close() }

// DB returns what the store's own statements run on: inside View and Edit
// their transaction.
func (s *Store) DB() Queryer { return s.db }

// Queryer runs statements that return rows.
type Queryer interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Pool returns the connections, for the ledger.
func (s *Store) Pool() *pgxpool.Pool { return s.pool }

// ConfigVersion returns the version of the configuration, which grows with
// every change of what a Snapshot holds.
func (s *Store) ConfigVersion(ctx context.Context) (v int64, err error) {
	err = s.db.QueryRow(ctx, `select version from weir.config_version`).Scan(&v)
	return v, wrap("read configuration version", err)
}

// WaitForChange returns when somebody has changed the configuration. It is a
// hint: changes made while nobody waits are missed, so callers poll as well.
// It uses a connection of its own, which poolers between us would break.
func (s *Store) WaitForChange(ctx context.Context, hint func()) error {
	conn, err := pgx.ConnectConfig(ctx, s.pool.Config().ConnConfig.Copy())
	if err != nil {
		return wrap("listen", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, `listen weir_config`); err != nil {
		return wrap("listen", err)
	}
	for {
		if _, err := conn.WaitForNotification(ctx); err != nil {
			return wrap("listen", err)
		}
		hint()
	}
}

// SQLSTATE codes that mean something to callers.
const (
	codeUnique     = "23505"
	codeForeignKey = "23503"
)

// wrap adds what was tried and turns the database's answers into ours.
func wrap(doing string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("%s: %w", doing, ErrNotFound)
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch pg.Code {
		case codeUnique:
			return fmt.Errorf("%s: %w", doing, ErrExists)
		case codeForeignKey:
			return fmt.Errorf("%s: %w", doing, ErrNotFound)
		}
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// Page bounds a list: at most Limit rows after the row with the id After.
type Page struct {
	After string
	Limit int
}

const maxPage = 1000

func (p Page) limit() int {
	if p.Limit <= 0 || p.Limit > maxPage {
		return maxPage
	}
	return p.Limit
}

func badField(field, format string, a ...any) error {
	return &tenants.FieldError{Field: field, Problem: fmt.Sprintf(format, a...)}
}

// inTx runs f in a transaction that is rolled back when f fails.
func (s *Store) inTx(ctx context.Context, f func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, s.db, f)
}
