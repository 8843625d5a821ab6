package store

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
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
}

// noDevice is how a request straight to the cloud is stored.
const noDevice = "00000000-0000-0000-0000-000000000000"

func (a *Answer) device() string {
	if a.DeviceID == "" {
		return noDevice
	}
	return a.DeviceID
}

// insertAnswer is followed by what happens to one that is there.
const insertAnswer = `insert into weir.answers (tenant_id, operation_id, device_id, model, class, pool, propensity, answered_at)
	values ($1, $2, $3, $4, $5, $6, $7, $8) on conflict (tenant_id, operation_id) do nothing`

func (a *Answer) args() []any {
	return []any{a.TenantID, a.OperationID, a.device(), a.Model, a.Class, a.Pool, a.Propensity, a.At}
}

// NoteAnswers keeps answers, once each.
func (s *Store) NoteAnswers(ctx context.Context, answers []Answer) error {
	return wrap("note answers", s.inTx(ctx, func(tx pgx.Tx) error {
		var b pgx.Batch
		for i := range answers {
			b.Queue(insertAnswer, answers[i].args()...)
		}
		return tx.SendBatch(ctx, &b).Close()
	}))
}

// Kinds of labels, the more trusted first: one does not replace those before it.
const (
	KindFeedback  = "feedback"
	KindValidator = "validator"
)

// Label is a score of an answer.
type Label struct {
	TenantID, OperationID string
	DeviceID              string // only an answer to this device; "": to any of the tenant's
	Kind                  string
	Score                 float64 // 0 to 1
	// Known is the answer, where the caller has it.
	Known *Answer
	// Decay is what a label of an arm keeps of its weight with each newer one, and
	// Window how many count.
	Decay  float64
	Window int
}

// PutLabel keeps a label in place of an earlier one, and makes its arm's sums anew.
// An answer that was not noted is looked for in the ledger. ErrNotFound says that
// there is none, or that it is another's.
func (s *Store) PutLabel(ctx context.Context, l Label) error {
	return wrap("keep label", s.inTx(ctx, func(tx pgx.Tx) error {
		a, err := l.answer(ctx, tx)
		if err != nil {
			return err
		}
		if a.Model != "" { // who has this row is alone with the arm
			_, err = tx.Exec(ctx, `insert into weir.arms (model, class, pool) values ($1, $2, $3)
				on conflict (model, class, pool) do update set updated_at = now()`, a.Model, a.Class, a.Pool)
		}
		if err == nil {
			_, err = tx.Exec(ctx, `update weir.answers set score = $3, kind = $4, scored_at = now()
				where tenant_id = $1 and operation_id = $2 and (kind is distinct from 'feedback' or $4 = 'feedback')`, l.TenantID, l.OperationID, l.Score, l.Kind)
		}
		if err == nil && a.Model != "" {
			_, err = tx.Exec(ctx, `update weir.arms as arm set updated_at = now(), good = s.good, bad = s.bad, labels = s.labels
				from (select coalesce(sum(weight * score), 0) as good, coalesce(sum(weight * (1 - score)), 0) as bad, count(*) as labels
					from (select score, power($4::float8, row_number() over (order by answered_at desc, operation_id) - 1) as weight
						from weir.answers where model = $1 and class = $2 and pool = $3 and score is not null
						order by answered_at desc, operation_id limit $5) as newest) as s
				where arm.model = $1 and arm.class = $2 and arm.pool = $3`, a.Model, a.Class, a.Pool, l.Decay, l.Window)
		}
		return err
	}))
}

// answer finds the label's answer, and notes it where that was not done.
func (l *Label) answer(ctx context.Context, tx pgx.Tx) (a Answer, err error) {
	if l.Known != nil {
		if _, err := tx.Exec(ctx, insertAnswer, l.Known.args()...); err != nil {
			return a, err
		}
	}
	read := func() error {
		return tx.QueryRow(ctx, `select model, class, pool from weir.answers
			where tenant_id = $1 and operation_id = $2 and ($3 = '' or device_id::text = $3)`, l.TenantID, l.OperationID, l.DeviceID).Scan(&a.Model, &a.Class, &a.Pool)
	}
	if err = read(); !errors.Is(err, pgx.ErrNoRows) {
		return a, err
	}
	// The operation's own time keeps the search in a part of the ledger: attempts
	// begin after it, but for the difference of two clocks.
	_, err = tx.Exec(ctx, `insert into weir.answers (tenant_id, operation_id, device_id, model, class, pool, propensity, answered_at)
		select tenant_id, operation_id, device_id, '', class, model, 0, started_at from weir.usage_ledger,
			(select to_timestamp(('x' || left(replace($2::text, '-', ''), 12))::bit(48)::bigint / 1000.0) as at) as op
		where tenant_id = $1 and operation_id = $2::uuid and ($3 = '' or device_id::text = $3) and tier = 'cloud' and outcome = 'ok'
			and started_at between op.at - interval '10 minutes' and op.at + interval '1 hour'
			and day between (op.at - interval '1 day')::date and (op.at + interval '1 day')::date
		order by started_at desc limit 1
		on conflict (tenant_id, operation_id) do nothing`, l.TenantID, l.OperationID, l.DeviceID)
	if err != nil {
		return a, err
	}
	return a, read()
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

// SweepAnswers drops answers from before open, after which none can be scored,
// and with their labels those from before all; a bounded number at a time.
func (s *Store) SweepAnswers(ctx context.Context, open, all time.Time) error {
	_, err := s.db.Exec(ctx, `delete from weir.answers where ctid = any (array(
		select ctid from weir.answers where answered_at < $1 and (score is null or answered_at < $2) limit 50000))`, open, all)
	return wrap("sweep answers", err)
}
