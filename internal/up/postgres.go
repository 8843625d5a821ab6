package up

import (
	"context"
	"fmt"
	"os"

	"github.com/weirhq/weir/internal/pgcluster"
)

// startPostgres returns the URL of the database: the operator's own, or that
// of a private cluster, which it starts.
func (s *supervisor) startPostgres(ctx context.Context) (string, error) {
	if s.databaseURL != "" {
		s.step("database: your own Postgres")
		return s.databaseURL, nil
	}
	exe, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find own binary: %w", err)
	}
	cluster, err := pgcluster.Open(ctx, pgcluster.Options{Dir: s.data, Guard: []string{exe, "postgres-guard"}})
	if err != nil {
		return "", err
	}
	guard := cluster.Guard()
	c, err := s.launchSpec(guard)
	if err != nil {
		return "", err
	}
	if err := cluster.WaitReady(ctx, c.done); err != nil {
		return "", fmt.Errorf("%w: %s", err, lastLine(c.log))
	}
	s.step("database: private Postgres in %s", cluster.Home())
	return cluster.URL(), nil
}
