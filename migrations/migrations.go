// Package migrations holds Weir's database schema, which lives in the
// PostgreSQL schema weir and nowhere else, and brings a database up to it.
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
)

//go:embed *.sql
var files embed.FS

// ErrNewerSchema says that the database was migrated by a later Weir.
var ErrNewerSchema = errors.New("the database's schema is newer than this weir: upgrade weir")

const (
	versionTable = "weir.schema_version"
	// lockID is the advisory lock of whoever migrates: "weir" and 1.
	lockID = 0x77656972_00000001
	// lockTimeout keeps a migration from queueing up traffic behind a lock
	// that it cannot get; the caller retries.
	lockTimeout = "5s"
)

// Up migrates the database to the schema of this binary. Processes that start
// together wait for one another. The error wraps ErrNewerSchema when a later
// Weir has been here; then nothing is changed.
func Up(ctx context.Context, url string) error {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return errors.New("migrate database: the database URL cannot be parsed") // pgx's error may quote it
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return fmt.Errorf("migrate database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx)) // frees the lock
	if _, err := conn.Exec(ctx, `select pg_advisory_lock($1)`, int64(lockID)); err != nil {
		return fmt.Errorf("migrate database: wait for the lock: %w", err)
	}
	if err := makeSchema(ctx, conn); err != nil {
		return fmt.Errorf("migrate database: %w", err)
	}
	if err := up(ctx, cfg); err != nil {
		return fmt.Errorf("migrate database: %w", err)
	}
	return nil
}

// makeSchema asks first: a role without the right to create schemas may use
// one that its administrator has made.
func makeSchema(ctx context.Context, conn *pgx.Conn) error {
	var there bool
	err := conn.QueryRow(ctx, `select exists (select from pg_namespace where nspname = 'weir')`).Scan(&there)
	if err != nil || there {
		return err
	}
	_, err = conn.Exec(ctx, `create schema weir`)
	return err
}

func up(ctx context.Context, cfg *pgx.ConnConfig) error {
	cfg = cfg.Copy()
	cfg.RuntimeParams["lock_timeout"] = lockTimeout
	db := stdlib.OpenDB(*cfg)
	defer db.Close()
	p, err := provider(db)
	if err != nil {
		return err
	}
	current, target, err := p.GetVersions(ctx)
	if err != nil {
		return err
	}
	if current > target {
		return fmt.Errorf("%w (database %d, weir %d)", ErrNewerSchema, current, target)
	}
	_, err = p.Up(ctx)
	return err
}

func provider(db *sql.DB) (*goose.Provider, error) {
	return goose.NewProvider(goose.DialectPostgres, db, files,
		goose.WithTableName(versionTable), goose.WithDisableGlobalRegistry(true), goose.WithLogger(goose.NopLogger()))
}
