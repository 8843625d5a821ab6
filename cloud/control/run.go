package control

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weirhq/weir/internal/pki"
	"github.com/weirhq/weir/migrations"
	"github.com/weirhq/weir/tenants"
)

const (
	// callTimeout bounds one contact with the database.
	callTimeout = 3 * time.Second
	// migrateTimeout leaves room for a migration of a big database.
	migrateTimeout = 10 * time.Minute
	// refresh renews an unchanged snapshot, so that its expiry moves on.
	refresh    = time.Hour
	maxBackoff = 10 * time.Second
	// daysAhead of ledger partitions are kept ready.
	daysAhead = 3
)

// AdminTokenFile, in the secrets directory, holds the first admin token.
const AdminTokenFile = "admin-token"

// Run brings the database up to date and then keeps the snapshot fresh and
// writes ledger rows until ctx ends; what is queued by then is written last.
// A database that is away is waited for. The error is not nil only when
// waiting is useless: its schema is newer than this program.
func (c *Control) Run(ctx context.Context) error {
	defer c.store.Close()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { c.rows.Run(ctx); return nil })
	g.Go(func() error {
		if err := c.prepare(ctx); err != nil {
			return err
		}
		changed := make(chan struct{}, 1)
		g.Go(func() error { c.listen(ctx, changed); return nil })
		g.Go(func() error { c.keepHouse(ctx); return nil })
		g.Go(func() error { c.keepAnswers(ctx); return nil })
		c.follow(ctx, changed)
		return nil
	})
	return g.Wait()
}

// prepare migrates and makes the first admin token, again and again until it
// succeeds.
func (c *Control) prepare(ctx context.Context) error {
	wait := 250 * time.Millisecond
	for {
		err := c.prepareOnce(ctx)
		switch {
		case ctx.Err() != nil, err == nil:
			return nil
		case errors.Is(err, migrations.ErrNewerSchema):
			return err
		}
		c.setDatabase(false, err)
		if !sleep(ctx, wait) {
			return nil
		}
		wait = min(2*wait, maxBackoff)
	}
}

func (c *Control) prepareOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, migrateTimeout)
	defer cancel()
	if err := migrations.Up(ctx, c.o.DatabaseURL); err != nil {
		return err
	}
	path := filepath.Join(c.o.SecretsDir, AdminTokenFile)
	made, err := c.store.FirstAdminToken(ctx, func(t tenants.AdminToken) error {
		return pki.WriteSecret(path, []byte(t.Reveal()+"\n"))
	})
	if made {
		c.o.Log.Info("first admin token written", "path", path)
	}
	return err
}

// What is known of the database.
const (
	databaseUnknown int32 = iota // at the start
	databaseUp
	databaseDown
)

// setDatabase notes whether the database answers, and logs only changes.
func (c *Control) setDatabase(up bool, err error) {
	now := databaseDown
	if up {
		now = databaseUp
	}
	was := c.database.Swap(now)
	switch {
	case now == was:
	case up:
		c.o.Log.Info("database answers")
	default:
		c.o.Log.Warn("database is away, serving what is known", "known", c.Index() != nil, "error", err)
	}
}

// follow polls the configuration's version until ctx ends. A hint on changed
// brings the next poll forward.
func (c *Control) follow(ctx context.Context, changed <-chan struct{}) {
	loaded := int64(-1)
	for {
		v, err := c.poll(ctx, loaded)
		if err == nil {
			err = c.followMembers(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		c.setDatabase(err == nil, err)
		if err == nil {
			loaded = v
		}
		timer := time.NewTimer(c.o.Poll)
		select {
		case <-timer.C:
		case <-changed:
			timer.Stop()
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// poll loads a new snapshot when the version is another one than loaded, or
// when the one in use gets old, and returns the version in use.
func (c *Control) poll(ctx context.Context, loaded int64) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	v, err := c.store.ConfigVersion(ctx)
	if err != nil {
		return loaded, err
	}
	if x := c.Index(); v == loaded && x != nil && time.Since(x.Snapshot().IssuedAt) < refresh {
		return loaded, nil
	}
	snap, err := c.store.Snapshot(ctx)
	if err != nil {
		return loaded, err
	}
	if err := c.use(snap); err != nil {
		c.o.Log.Error("tenant snapshot refused, the one before stays", "version", snap.Version, "error", err)
	}
	return snap.Version, nil
}

// use puts a snapshot from the database into force and keeps it on disk.
func (c *Control) use(snap *tenants.Snapshot) error {
	snap.Models = c.o.Models
	snap.IssuedAt = time.Now().UTC()
	snap.ExpiresAt = snap.IssuedAt.Add(c.o.SnapshotLife)
	x, err := tenants.NewIndex(snap)
	if err != nil {
		return err
	}
	c.index.Store(x)
	b, err := snap.Sign(c.signer)
	if err == nil {
		err = pki.WriteSecret(c.keptPath(), b)
	}
	if err != nil { // a full disk must not stop the change from holding
		c.o.Log.Error("tenant snapshot is not kept on disk", "error", err)
	}
	return nil
}

// listen turns notifications into hints. It reconnects for ever; the poll
// does not depend on it.
func (c *Control) listen(ctx context.Context, changed chan<- struct{}) {
	for ctx.Err() == nil {
		_ = c.store.WaitForChange(ctx, func() { // the poll reports a database that is away
			select {
			case changed <- struct{}{}:
			default:
			}
		})
		sleep(ctx, maxBackoff)
	}
}

const houseKeeping = 30 * time.Second

// keepHouse makes partitions ahead, writes last-seen times and removes what
// has expired.
func (c *Control) keepHouse(ctx context.Context) {
	for {
		if err := c.tidy(ctx); err != nil && ctx.Err() == nil && c.DatabaseUp() {
			c.o.Log.Warn("housekeeping failed, will try again", "error", err)
		}
		if !sleep(ctx, houseKeeping) {
			return
		}
	}
}

func (c *Control) tidy(ctx context.Context) error {
	short, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	now := time.Now()
	return errors.Join(
		c.ledger.EnsureDays(short, now.Add(-24*time.Hour), now.Add(daysAhead*24*time.Hour)),
		c.store.Seen(short, c.seen.take()),
		c.store.KeysUsed(short, c.used.take()),
		c.store.AdminTokensUsed(short, c.adminsUsed.take()),
		c.store.SweepClaims(short),
		c.store.SweepReplays(short),
		c.store.SweepInstances(short),
		c.retain(short, now),
		c.sweepAnswers(ctx, now),
	)
}

// Sums by minute serve charts of the last days, those by hour a year's report.
const (
	keepMinutes = 14 * 24 * time.Hour
	keepHours   = 400 * 24 * time.Hour
)

// retain drops what is older than its retention, once an hour.
func (c *Control) retain(ctx context.Context, now time.Time) error {
	if now.Sub(c.retained) < time.Hour {
		return nil
	}
	_, err := c.ledger.DropBefore(ctx, now.Add(-c.o.Retention))
	err = errors.Join(err, c.ledger.PruneSums(ctx, now.Add(-keepMinutes), now.Add(-keepHours)))
	if err == nil {
		c.retained = now
	}
	return err
}

// sleep waits and reports whether ctx still holds.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
