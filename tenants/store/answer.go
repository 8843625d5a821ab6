package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Answer is an answer that may be scored.
type Answer struct {
	TenantID, OperationID string
	DeviceID              string // "": straight to the cloud
	// Model, Class and Pool name the arm that a score moves; without a model it
	// moves none.
	Model, Class, Pool string
	Propensity         float64 // with which the pool was chosen; 0: it stood in for another
	At                 time.Time
	// Form is 1 where a check found the form that was asked for, 0 where the answer
	// broke it, nil where nothing was checked.
	Form *float64
}

// noDevice is how a request straight to the cloud is stored.
const noDevice = "00000000-0000-0000-0000-000000000000"

func (a *Answer) device() string {
	if a.DeviceID == "" {
		return noDevice
	}
	return a.DeviceID
}

// insertAnswer notes an answer. Of two answers to one operation the later one is
// the client's, until somebody has said what it is worth.
const insertAnswer = `insert into weir.answers as a (tenant_id, operation_id, device_id, model, class, pool, propensity, answered_at, score, kind, scored_at)
	values ($1, $2, $3, $4, $5, $6, $7, $8, $9, case when $9::float8 is not null then 'validator' end, case when $9::float8 is not null then now() end)
	on conflict (tenant_id, operation_id) do update set model = excluded.model, class = excluded.class, pool = excluded.pool, propensity = excluded.propensity,
		answered_at = excluded.answered_at, score = excluded.score, kind = excluded.kind, scored_at = excluded.scored_at
	where a.score is null and a.device_id = excluded.device_id and a.answered_at < excluded.answered_at`

func (a *Answer) args() []any {
	return []any{a.TenantID, a.OperationID, a.device(), a.Model, a.Class, a.Pool, a.Propensity, a.At, a.Form}
}

// NoteAnswers keeps answers, once each, with what checks have found, and makes the
// sums of their arms anew. Another device's operation of the same id stays as it
// is. ErrRefused says that the database takes one of them at no time.
func (s *Store) NoteAnswers(ctx context.Context, answers []Answer, m Memory) error {
	// Who waits for rows in one order, and then for arms in one, waits for nobody
	// who waits for him.
	answers = slices.SortedFunc(slices.Values(answers), func(x, y Answer) int {
		return cmp.Or(cmp.Compare(x.TenantID, y.TenantID), cmp.Compare(x.OperationID, y.OperationID), x.At.Compare(y.At))
	})
	return wrap("note answers", refused(s.inTx(ctx, func(tx pgx.Tx) error {
		var b pgx.Batch
		arms := map[armName]bool{}
		for i := range answers {
			a := &answers[i]
			b.Queue(insertAnswer, a.args()...)
			if a.Form != nil {
				arms[armName{a.Model, a.Class, a.Pool}] = true
			}
		}
		if err := tx.SendBatch(ctx, &b).Close(); err != nil {
			return err
		}
		for _, of := range slices.SortedFunc(maps.Keys(arms), armName.compare) {
			if err := m.sum(ctx, tx, of); err != nil {
				return err
			}
		}
		return nil
	})))
}

// ErrRefused says that the database refuses what a row says.
var ErrRefused = errors.New("a row is refused")

// refused tells errors of the data (SQLSTATE classes 22 and 23) from those that
// pass.
func refused(err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && (strings.HasPrefix(pg.Code, "22") || strings.HasPrefix(pg.Code, "23")) {
		return fmt.Errorf("%w: %s", ErrRefused, pg.Message)
	}
	return err
}

// Memory is which labels of an arm count, and how much.
type Memory struct {
	Decay  float64 // what a label keeps of its weight with each newer one
	Window int     // that are looked at, the newest
	Own    int     // of these, that count of one tenant
}

// armName is which arm.
type armName struct{ model, class, pool string }

func (a armName) compare(b armName) int {
	return cmp.Or(cmp.Compare(a.model, b.model), cmp.Compare(a.class, b.class), cmp.Compare(a.pool, b.pool))
}

// sum makes an arm's sums anew. The arm's row is taken first: who has it sees the
// labels of all who had it before.
func (m *Memory) sum(ctx context.Context, tx pgx.Tx, of armName) error {
	_, err := tx.Exec(ctx, `insert into weir.arms (model, class, pool) values ($1, $2, $3)
		on conflict (model, class, pool) do update set updated_at = now()`, of.model, of.class, of.pool)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `update weir.arms as arm set updated_at = now(), good = s.good, bad = s.bad, labels = s.labels
		from (select coalesce(sum(weight * score), 0) as good, coalesce(sum(weight * (1 - score)), 0) as bad, count(*) as labels
			from (select score, power($4::float8, row_number() over (order by answered_at desc, operation_id) - 1) as weight
				from (select score, answered_at, operation_id, row_number() over (partition by tenant_id order by answered_at desc, operation_id) as nth
					from (select tenant_id, score, answered_at, operation_id from weir.answers where model = $1 and class = $2 and pool = $3 and score is not null
						order by answered_at desc, operation_id limit $5) as newest) as own
				where nth <= $6) as counted) as s
		where arm.model = $1 and arm.class = $2 and arm.pool = $3`, of.model, of.class, of.pool, m.Decay, m.Window, m.Own)
	return err
}

// Label is a user's score of an answer.
type Label struct {
	TenantID, OperationID string
	DeviceID              string  // only an answer to this device; "": to any of the tenant's
	Score                 float64 // 0 to 1
	// Known is the answer, where the caller has it.
	Known *Answer
	// Noted are models, as the ledger has them, whose answers are noted: the ledger's
	// own word is not enough for these.
	Noted []string
}

// PutLabel keeps a label in place of an earlier one or of a check's, and makes its
// arm's sums anew. An answer that was not noted is looked for in the ledger, but
// for one of l.Noted.
// ErrNotFound says that there is none, or that it is another's.
func (s *Store) PutLabel(ctx context.Context, l Label, m Memory) error {
	return wrap("keep label", s.inTx(ctx, func(tx pgx.Tx) error {
		of, err := l.answer(ctx, tx)
		if err == nil {
			_, err = tx.Exec(ctx, `update weir.answers set score = $3, kind = 'feedback', scored_at = now()
				where tenant_id = $1 and operation_id = $2`, l.TenantID, l.OperationID, l.Score)
		}
		if err == nil && of.model != "" {
			err = m.sum(ctx, tx, of)
		}
		return err
	}))
}

// answer finds the label's answer, notes it where that was not done, and holds its
// row.
func (l *Label) answer(ctx context.Context, tx pgx.Tx) (of armName, err error) {
	if l.Known != nil {
		if _, err := tx.Exec(ctx, insertAnswer, l.Known.args()...); err != nil {
			return of, err
		}
	}
	read := func() error {
		return tx.QueryRow(ctx, `select model, class, pool from weir.answers
			where tenant_id = $1 and operation_id = $2 and ($3 = '' or device_id::text = $3) for update`, l.TenantID, l.OperationID, l.DeviceID).Scan(&of.model, &of.class, &of.pool)
	}
	if err = read(); !errors.Is(err, pgx.ErrNoRows) {
		return of, err
	}
	// The operation's own time keeps the search in two partitions: attempts begin
	// after it, but for the difference of two clocks.
	_, err = tx.Exec(ctx, `insert into weir.answers (tenant_id, operation_id, device_id, model, class, pool, propensity, answered_at)
		select tenant_id, operation_id, device_id, '', class, model, 0, started_at from weir.usage_ledger,
			(select to_timestamp(('x' || left(replace($2::text, '-', ''), 12))::bit(48)::bigint / 1000.0) as at) as op
		where tenant_id = $1 and operation_id = $2::uuid and ($3 = '' or device_id::text = $3) and tier = 'cloud' and outcome = 'ok' and model <> all ($4::text[])
			and day between (op.at - interval '1 day')::date and (op.at + interval '1 day')::date
		order by started_at desc limit 1
		on conflict (tenant_id, operation_id) do nothing`, l.TenantID, l.OperationID, l.DeviceID, append([]string{}, l.Noted...))
	if err != nil {
		return of, err
	}
	return of, read()
}

// Arm is what a pool's answers to a model's requests of a class have earned.
type Arm struct {
	Model, Class, Pool string
	Good, Bad          float64 // weights of the labels, old ones fading
	Labels             int     // that count
	UpdatedAt          time.Time
}

// Arms lists all arms.
func (s *Store) Arms(ctx context.Context) ([]Arm, error) {
	return list(ctx, s, "list arms", func(r pgx.CollectableRow) (a Arm, err error) {
		err = r.Scan(&a.Model, &a.Class, &a.Pool, &a.Good, &a.Bad, &a.Labels, &a.UpdatedAt)
		a.UpdatedAt = a.UpdatedAt.UTC()
		return a, err
	}, `select model, class, pool, good, bad, labels, updated_at from weir.arms order by model, class, pool limit 10000`)
}

// sweepAtOnce bounds what one sweep deletes.
const sweepAtOnce = 50_000

// SweepAnswers drops answers without a score from before open, after which none
// can be scored, and all from before all; a bounded number at a time.
func (s *Store) SweepAnswers(ctx context.Context, open, all time.Time) error {
	for _, old := range []struct {
		rows   string // as the index of them says
		before time.Time
	}{{"score is null", open}, {"score is not null", all}} {
		if _, err := s.db.Exec(ctx, `delete from weir.answers where ctid = any (array(
			select ctid from weir.answers where `+old.rows+` and answered_at < $1 order by answered_at limit $2))`, old.before, sweepAtOnce); err != nil {
			return wrap("sweep answers", err)
		}
	}
	return nil
}
