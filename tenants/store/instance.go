package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/tenants"
)

// Instance is a worker that has joined, with what its process last told.
type Instance struct {
	Name         string     `json:"name"`
	TokenID      string     `json:"token_id" doc:"with which it joined"`
	JoinedAt     time.Time  `json:"joined_at"`
	CertNotAfter time.Time  `json:"cert_not_after"`
	URL          string     `json:"url" doc:"empty until it has registered"`
	KV           string     `json:"kv" doc:"host:port for hand-offs; empty: it has none"`
	Role         string     `json:"role" doc:"at its registration"`
	Model        string     `json:"model"`
	Fingerprint  string     `json:"fingerprint" doc:"weights:runner:KV format"`
	Epoch        string     `json:"epoch" doc:"of its process"`
	RegisteredAt *time.Time `json:"registered_at"`
	SeenAt       *time.Time `json:"seen_at" doc:"its last heartbeat"`
	DrainedAt    *time.Time `json:"drained_at" doc:"when it left"`
}

const instanceColumns = `name, token_id, joined_at, cert_not_after, url, kv, role, model, fingerprint, epoch, registered_at, seen_at, drained_at`

func scanInstance(r pgx.CollectableRow) (i Instance, err error) {
	err = r.Scan(&i.Name, &i.TokenID, &i.JoinedAt, &i.CertNotAfter, &i.URL, &i.KV, &i.Role, &i.Model, &i.Fingerprint, &i.Epoch,
		&i.RegisteredAt, &i.SeenAt, &i.DrainedAt)
	utc(&i.JoinedAt, &i.CertNotAfter, i.RegisteredAt, i.SeenAt, i.DrainedAt)
	return i, err
}

// Instances lists the workers that have joined, by name.
func (s *Store) Instances(ctx context.Context, p Page) ([]Instance, error) {
	return list(ctx, s, "list instances", scanInstance,
		`select `+instanceColumns+` from weir.instances where name > $1 order by name limit $2`, p.After, p.limit())
}

// InstanceByName returns one worker that has joined.
func (s *Store) InstanceByName(ctx context.Context, name string) (Instance, error) {
	return one(ctx, s, "read instance", scanInstance, `select `+instanceColumns+` from weir.instances where name = $1`+s.lock, name)
}

// ForgetInstance takes a worker's membership and its name away: its certificate
// opens nothing here any more.
func (s *Store) ForgetInstance(ctx context.Context, name string) error {
	return s.changeMembers(ctx, "forget instance", `delete from weir.instances where name = $1 returning name`, name)
}

// Why a worker's word was not taken.
var (
	// ErrNotMember says that the name does not belong to the worker's key: it was
	// forgotten, or another worker has joined under it.
	ErrNotMember = errors.New("this worker is not a member")
	// ErrReplaced says that a newer process of the worker has registered.
	ErrReplaced = errors.New("a newer process of this worker has registered")
)

// HeldError says which process of the worker has the membership.
type HeldError struct{ Epoch string }

func (e *HeldError) Error() string {
	return "the membership is process " + e.Epoch + "'s: name it to replace it"
}

// Registration is what a worker's process tells of itself.
type Registration struct {
	Name        string
	Key         tenants.Hash
	URL, KV     string
	Role, Model string
	Fingerprint string
	Epoch       string
	Replaces    *string // epoch of the process whose membership it takes; "" takes nobody's, nil anybody's
}

// RegisterInstance makes a worker's process a member, in place of the one that it
// names. So a request that was long on its way cannot put an old process in the
// place of a newer one, unless it names none, as workers once did. The error is a *HeldError where another process is the
// member, ErrNotMember where name and key do not belong together.
func (s *Store) RegisterInstance(ctx context.Context, r Registration) error {
	err := s.changeMembers(ctx, "register instance", `update weir.instances set url = $3, kv = $4, role = $5, model = $6, fingerprint = $7, epoch = $8,
		registered_at = now(), seen_at = now(), drained_at = null
		where name = $1 and key_sha256 = $2 and (epoch in ('', $8, $9) or $9::text is null or drained_at is not null) returning name`,
		r.Name, r.Key[:], r.URL, r.KV, r.Role, r.Model, r.Fingerprint, r.Epoch, r.Replaces)
	if !errors.Is(err, ErrNotFound) {
		return err
	}
	var holder string
	err = s.db.QueryRow(ctx, `select epoch from weir.instances where name = $1 and key_sha256 = $2`, r.Name, r.Key[:]).Scan(&holder)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("register instance: %w", ErrNotMember)
	case err != nil:
		return wrap("register instance", err)
	}
	return &HeldError{holder}
}

// changeMembers runs a statement that returns the name of the one row that it
// changed, and tells the gateways.
func (s *Store) changeMembers(ctx context.Context, doing, sql string, args ...any) error {
	var done string
	return wrap(doing, s.db.QueryRow(ctx, `with changed as (`+sql+`) select pg_notify('weir_config', 'instances')::text from changed`, args...).Scan(&done))
}

// InstanceSeen notes a heartbeat of a worker's process. The error is
// ErrNotMember or ErrReplaced.
func (s *Store) InstanceSeen(ctx context.Context, name string, key tenants.Hash, epoch string) error {
	tag, err := s.db.Exec(ctx, `update weir.instances set seen_at = now() where name = $1 and key_sha256 = $2 and epoch = $3`, name, key[:], epoch)
	if err == nil && tag.RowsAffected() == 0 {
		return s.whyNot(ctx, name, key)
	}
	return wrap("note heartbeat", err)
}

// InstanceLeft ends the membership of a worker's process. The name stays the
// worker's. Errors are those of InstanceSeen.
func (s *Store) InstanceLeft(ctx context.Context, name string, key tenants.Hash, epoch string) error {
	err := s.changeMembers(ctx, "note departure", `update weir.instances set drained_at = now() where name = $1 and key_sha256 = $2 and epoch = $3 returning name`,
		name, key[:], epoch)
	if errors.Is(err, ErrNotFound) {
		return s.whyNot(ctx, name, key)
	}
	return err
}

// InstanceRenewed notes until when a worker's new certificate is valid. The
// error is ErrNotMember.
func (s *Store) InstanceRenewed(ctx context.Context, name string, key tenants.Hash, life time.Duration) error {
	tag, err := s.db.Exec(ctx, `update weir.instances set cert_not_after = now() + $3::interval where name = $1 and key_sha256 = $2`, name, key[:], life)
	if err == nil && tag.RowsAffected() == 0 {
		err = ErrNotMember
	}
	return wrap("renew certificate", err)
}

func (s *Store) whyNot(ctx context.Context, name string, key tenants.Hash) error {
	var member bool
	err := s.db.QueryRow(ctx, `select exists (select from weir.instances where name = $1 and key_sha256 = $2)`, name, key[:]).Scan(&member)
	switch {
	case err != nil:
		return wrap("look for instance", err)
	case member:
		return ErrReplaced
	}
	return ErrNotMember
}

// Membership is a process that gateways may send work to.
type Membership struct {
	Name, URL   string
	Role, Model string
	Epoch       string
	Silent      time.Duration // since its last heartbeat, on the database's clock
}

// Members lists the processes that have registered and not left, by name.
// Silent ones are among them: who asks decides for how long it believes in them.
func (s *Store) Members(ctx context.Context) ([]Membership, error) {
	return list(ctx, s, "list members", func(r pgx.CollectableRow) (m Membership, err error) {
		var seconds float64
		err = r.Scan(&m.Name, &m.URL, &m.Role, &m.Model, &m.Epoch, &seconds)
		m.Silent = time.Duration(seconds * float64(time.Second))
		return m, err
	}, `select name, url, role, model, epoch, greatest(extract(epoch from now() - seen_at), 0)::float8
		from weir.instances where registered_at is not null and drained_at is null and cert_not_after > now() order by name`)
}

// SweepInstances removes workers whose certificates have ended: they have to
// join anew.
func (s *Store) SweepInstances(ctx context.Context) error {
	_, err := s.db.Exec(ctx, `delete from weir.instances where cert_not_after < now()`)
	return wrap("sweep instances", err)
}
