package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/tenants"
)

// WorkerToken is a token with which workers join, as the admin API shows it:
// without its secret.
type WorkerToken struct {
	ID         string     `json:"id"`
	Name       string     `json:"name"`
	Uses       int        `json:"uses" doc:"workers that it lets in"`
	Used       int        `json:"used"`
	CreatedAt  time.Time  `json:"created_at"`
	ExpiresAt  time.Time  `json:"expires_at"`
	LastUsedAt *time.Time `json:"last_used_at"`
}

// NewWorkerToken is a worker token to be created.
type NewWorkerToken struct {
	Name       string `json:"name" example:"rack 3" doc:"label"`
	Uses       *int   `json:"uses" example:"4" doc:"workers that it lets in, default 1, at most 1000"`
	TTLSeconds *int64 `json:"ttl_seconds" example:"3600" doc:"default a day, at most 30"`
}

const maxUses = 1000

func (n NewWorkerToken) uses() (int, error) {
	switch {
	case n.Uses == nil:
		return 1, nil
	case *n.Uses < 1 || *n.Uses > maxUses:
		return 0, badField("uses", "want 1 to %d", maxUses)
	}
	return *n.Uses, nil
}

const workerTokenColumns = `id, name, uses, used, created_at, expires_at, last_used_at`

func scanWorkerToken(r pgx.CollectableRow) (t WorkerToken, err error) {
	err = r.Scan(&t.ID, &t.Name, &t.Uses, &t.Used, &t.CreatedAt, &t.ExpiresAt, &t.LastUsedAt)
	utc(&t.CreatedAt, &t.ExpiresAt, t.LastUsedAt)
	return t, err
}

// CreateWorkerToken adds a token that carries the authority's pin. The secret
// is in the second result and nowhere else.
func (s *Store) CreateWorkerToken(ctx context.Context, n NewWorkerToken, pin tenants.Pin) (WorkerToken, tenants.JoinToken, error) {
	uses, err := n.uses()
	if err != nil {
		return WorkerToken{}, tenants.JoinToken{}, err
	}
	life, err := joinLife(n.TTLSeconds)
	if err != nil {
		return WorkerToken{}, tenants.JoinToken{}, err
	}
	if err := checkName("name", n.Name, false); err != nil {
		return WorkerToken{}, tenants.JoinToken{}, err
	}
	secret, err := tenants.MintJoinToken(pin)
	if err != nil {
		return WorkerToken{}, tenants.JoinToken{}, wrap("create worker token", err)
	}
	hash := tenants.HashSecret(secret.Secret)
	t, err := one(ctx, s, "create worker token", scanWorkerToken,
		`insert into weir.worker_tokens (id, name, sha256, uses, expires_at)
		values ($1, $2, $3, $4, now() + $5::interval) returning `+workerTokenColumns, secret.ID, n.Name, hash[:], uses, life)
	return t, secret, err
}

// WorkerTokenByID returns one token.
func (s *Store) WorkerTokenByID(ctx context.Context, id string) (WorkerToken, error) {
	return one(ctx, s, "read worker token", scanWorkerToken, `select `+workerTokenColumns+` from weir.worker_tokens where id = $1`+s.lock, id)
}

// WorkerTokens lists tokens, oldest first.
func (s *Store) WorkerTokens(ctx context.Context, p Page) ([]WorkerToken, error) {
	return listAfter(ctx, s, "worker_tokens", p.After, "list worker tokens", scanWorkerToken,
		`select `+workerTokenColumns+` from weir.worker_tokens
		where ($1 = '' or (created_at, id) > (select created_at, id from weir.worker_tokens where id = $1))
		order by created_at, id limit $2`, p.After, p.limit())
}

// RevokeWorkerToken lets no further worker in. Those that are in stay.
func (s *Store) RevokeWorkerToken(ctx context.Context, id string) (WorkerToken, error) {
	return one(ctx, s, "revoke worker token", scanWorkerToken,
		`update weir.worker_tokens set expires_at = least(expires_at, now()) where id = $1 returning `+workerTokenColumns, id)
}

// WorkerJoin is a worker's request to join with a token.
type WorkerJoin struct {
	Token    tenants.JoinToken
	Name     string        // of the instance
	Key      tenants.Hash  // SHA-256 of the worker's public key (SPKI)
	CertLife time.Duration // how long its certificate will be valid
}

// ErrNameTaken says that another worker, which lives, has the name.
var ErrNameTaken = errors.New("another worker has this name")

// NameKept is for how long a name stays with the key of a worker that is silent
// or has left: a restart takes no longer.
const NameKept = 2 * time.Minute

// AdmitWorker uses the token once and gives the name to the key. A key that
// comes again for its name has lost its answer and uses nothing. sign is called
// inside the transaction, and an error of it leaves everything as it was. The
// error is ErrTokenUnknown, ErrTokenUsed, ErrTokenExpired, ErrNameTaken or
// sign's.
func (s *Store) AdmitWorker(ctx context.Context, j WorkerJoin, sign func() error) error {
	err := s.inTx(ctx, func(tx pgx.Tx) error {
		left, err := lockWorkerToken(ctx, tx, j.Token)
		if err != nil {
			return err
		}
		var again bool
		err = tx.QueryRow(ctx, `select exists (select from weir.instances where name = $1 and key_sha256 = $2 and token_id = $3)`,
			j.Name, j.Key[:], j.Token.ID).Scan(&again)
		switch {
		case err != nil:
			return err
		case !again && left == 0:
			return ErrTokenUsed
		}
		if err := takeName(ctx, tx, j, again); err != nil {
			return err
		}
		return sign()
	})
	if err != nil {
		return fmt.Errorf("join: %w", err)
	}
	return nil
}

// lockWorkerToken holds the token's row until the transaction's end and returns
// how many more workers it lets in.
func lockWorkerToken(ctx context.Context, tx pgx.Tx, shown tenants.JoinToken) (left int, err error) {
	var hash []byte
	var expired bool
	err = tx.QueryRow(ctx, `select sha256, expires_at <= now(), uses - used from weir.worker_tokens where id = $1 for update`, shown.ID).
		Scan(&hash, &expired, &left)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return 0, ErrTokenUnknown
	case err != nil:
		return 0, err
	case !tenants.Hash(hash).Matches(shown.Secret): // before the rest, which only its holder may know
		return 0, ErrTokenUnknown
	case expired:
		return 0, ErrTokenExpired
	}
	return left, nil
}

func takeName(ctx context.Context, tx pgx.Tx, j WorkerJoin, again bool) error {
	if again {
		_, err := tx.Exec(ctx, `update weir.instances set cert_not_after = now() + $2::interval where name = $1`, j.Name, j.CertLife)
		return err
	}
	tag, err := tx.Exec(ctx, `insert into weir.instances as i (name, token_id, key_sha256, cert_not_after) values ($1, $2, $3, now() + $4::interval)
		on conflict (name) do update set token_id = excluded.token_id, key_sha256 = excluded.key_sha256, joined_at = now(),
			cert_not_after = excluded.cert_not_after, url = '', kv = '', role = '', model = '', fingerprint = '', epoch = '',
			registered_at = null, seen_at = null, drained_at = null
		where i.key_sha256 = excluded.key_sha256 or greatest(i.joined_at, i.seen_at) < now() - $5::interval`,
		j.Name, j.Token.ID, j.Key[:], j.CertLife, NameKept)
	switch {
	case err != nil:
		return err
	case tag.RowsAffected() == 0:
		return ErrNameTaken
	}
	_, err = tx.Exec(ctx, `update weir.worker_tokens set used = used + 1, last_used_at = now() where id = $1`, j.Token.ID)
	return err
}
