package pgcluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/internal/proc"
)

// Start runs the guard once and waits until the database answers. Stop the
// child to stop the server.
func (c *Cluster) Start(ctx context.Context) (*proc.Child, error) {
	child, err := proc.Start(c.Guard())
	if err != nil {
		return nil, fmt.Errorf("private PostgreSQL: %w", err)
	}
	if err := c.WaitReady(ctx, child.Done()); err != nil {
		child.Stop(stopGrace)
		return nil, err
	}
	return child, nil
}

const stopGrace = 10 * time.Second

// Serve runs the server inside this process, without a guard, until ctx ends.
// On Linux it still ends with the process.
func (c *Cluster) Serve(ctx context.Context) error {
	if err := c.server().run(ctx); err != nil {
		return fmt.Errorf("private PostgreSQL: %w%s", err, c.tail.reason())
	}
	return nil
}

// WaitReady waits until Weir's database answers, and makes it the first time.
// It gives up with ctx or, when ended is not nil, with the server; its error
// then holds the server's own last words.
func (c *Cluster) WaitReady(ctx context.Context, ended <-chan struct{}) error {
	for {
		err := c.ensureDatabase(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ended:
			return fmt.Errorf("private PostgreSQL did not start%s", c.tail.reason())
		case <-ctx.Done():
			return fmt.Errorf("private PostgreSQL is not ready: %w%s", errors.Join(context.Cause(ctx), err), c.tail.reason())
		case <-time.After(25 * time.Millisecond):
		}
	}
}

func (c *Cluster) ensureDatabase(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, c.url("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	var there bool
	if err := conn.QueryRow(ctx, `select exists (select from pg_database where datname = $1)`, dbName).Scan(&there); err != nil || there {
		return err
	}
	_, err = conn.Exec(ctx, `create database `+dbName)
	return err
}
