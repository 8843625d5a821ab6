package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Scored is an answer of a model with equal pools, with what it is worth.
type Scored struct {
	At                    time.Time
	TenantID, OperationID string
	Model, Class, Pool    string
	Propensity            float64 // with which the pool was chosen; 0: it stood in for another
	Score                 float64 // 0 to 1
	Kind                  string  // whose word the score is
}

// ScoredIn selects scored answers: those from From up to To, and of one model alone
// where Model is not empty.
type ScoredIn struct {
	From, To time.Time
	Model    string
}

// ScoredAnswers lists at most limit answers that come after one of the selection, the
// zero value for the first, oldest first.
func (s *Store) ScoredAnswers(ctx context.Context, in ScoredIn, after Scored, limit int) ([]Scored, error) {
	if after.OperationID == "" {
		after.At, after.OperationID, after.TenantID = in.From, noDevice, noDevice
	}
	return list(ctx, s, "list scored answers", func(r pgx.CollectableRow) (a Scored, err error) {
		err = r.Scan(&a.At, &a.TenantID, &a.OperationID, &a.Model, &a.Class, &a.Pool, &a.Propensity, &a.Score, &a.Kind)
		a.At = a.At.UTC()
		return a, err
	}, `select answered_at, tenant_id, operation_id, model, class, pool, propensity, score, kind from weir.answers
		where score is not null and model <> '' and ($3 = '' or model = $3) and answered_at >= $4 and answered_at < $1
			and (answered_at, operation_id, tenant_id) > ($4, $5::uuid, $6::uuid)
		order by answered_at, operation_id, tenant_id limit $2`, in.To, limit, in.Model, after.At, after.OperationID, after.TenantID)
}
