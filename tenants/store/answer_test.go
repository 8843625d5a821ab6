package store

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
)

const (
	testDecay  = .99
	testWindow = 50
)

func note(t *testing.T, s *Store, owner, pool string, n int) []Answer {
	t.Helper()
	out := make([]Answer, n)
	for i := range out {
		out[i] = Answer{TenantID: owner, OperationID: uuid.Must(uuid.NewV7()).String(), Model: "auto", Class: "std", Pool: pool, Propensity: .5,
			At: time.Unix(1_790_000_000+int64(i), 0)}
	}
	for range 2 { // once each
		if err := s.NoteAnswers(t.Context(), out); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func labelOf(a *Answer, score float64) Label {
	return Label{TenantID: a.TenantID, OperationID: a.OperationID, Kind: KindFeedback, Score: score, Decay: testDecay, Window: testWindow}
}

// fold is what the sums should be: scores, oldest first.
func fold(scores []float64) (good, bad float64) {
	for _, y := range scores[max(0, len(scores)-testWindow):] {
		good, bad = testDecay*good+y, testDecay*bad+1-y
	}
	return good, bad
}

func arm(t *testing.T, s *Store, pool string) Arm {
	t.Helper()
	all, err := s.Arms(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if a.Pool == pool {
			return a
		}
	}
	return Arm{}
}

// The sums of an arm are those of its newest labels, whatever order they come in,
// together or one by one, and however often they are replaced.
func TestArmsAreSumsOfLabels(t *testing.T) {
	s := open(t)
	acme := tenant(t, s, "acme").ID
	answers := note(t, s, acme, "a", 2*testWindow)
	final := make([]float64, len(answers))
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range final {
		final[i] = float64(rng.IntN(5)) / 4
	}
	var wg sync.WaitGroup
	for w := range 4 { // as many gateways
		wg.Go(func() {
			for i := w; i < len(answers); i += 4 {
				for _, score := range []float64{1 - final[i], final[i]} {
					if err := s.PutLabel(t.Context(), labelOf(&answers[i], score)); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	good, bad := fold(final)
	if got := arm(t, s, "a"); math.Abs(got.Good-good) > 1e-9 || math.Abs(got.Bad-bad) > 1e-9 || got.Labels != testWindow || got.Model != "auto" || got.Class != "std" {
		t.Errorf("%+v, want %v and %v", got, good, bad)
	}
}

func TestLabelsOfTheirOwn(t *testing.T) {
	s := open(t)
	acme, other := tenant(t, s, "acme").ID, tenant(t, s, "other").ID
	a := note(t, s, acme, "a", 1)[0]
	foreign := labelOf(&a, 1)
	foreign.TenantID = other
	unknown := labelOf(&a, 1)
	unknown.OperationID = uuid.Must(uuid.NewV7()).String()
	device := labelOf(&a, 1)
	device.DeviceID = uuid.NewString()
	for name, l := range map[string]Label{"another tenant's": foreign, "unknown": unknown, "another device's": device} {
		if err := s.PutLabel(t.Context(), l); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := arm(t, s, "a"); got.Labels != 0 {
		t.Errorf("%+v", got)
	}
	broken := labelOf(&a, 0)
	broken.Kind = KindValidator
	for _, step := range []struct {
		l    Label
		good float64
	}{{broken, 0}, {labelOf(&a, 1), 1}, {broken, 1}} { // a user's word is not a validator's to replace
		if err := s.PutLabel(t.Context(), step.l); err != nil {
			t.Fatal(err)
		}
		if got := arm(t, s, "a"); got.Good != step.good || got.Labels != 1 {
			t.Errorf("after %+v: %+v", step.l, got)
		}
	}
}

// An answer that nobody has noted is found in the ledger, or told by who knows it;
// its score moves no arm.
func TestLabelsOfPlainPools(t *testing.T) {
	s := open(t)
	acme := tenant(t, s, "acme").ID
	op := uuid.Must(uuid.NewV7()).String()
	for _, sql := range []string{`select weir.ensure_usage_day((now() at time zone 'UTC')::date)`,
		fmt.Sprintf(`insert into weir.usage_ledger (day, attempt_id, tenant_id, device_id, operation_id, key_id, tier, model, class, outcome, usage_source, input_tokens, cached_tokens,
		output_tokens, reasoning_tokens, price_version, cost_nanousd, started_at, ttft_us, total_us, error_code, reason, node, node_epoch)
		values ((now() at time zone 'UTC')::date, gen_random_uuid(), '%s', '%s', '%s', 'k', 'cloud', 'big', 'std', 'ok', 'upstream', 1, 0, 1, 0, 1, 0, now(), 1, 1, '', '', 'n', 'e')`, acme, noDevice, op)} {
		if _, err := s.pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	l := labelOf(&Answer{TenantID: acme, OperationID: op}, .5)
	known := Answer{TenantID: acme, OperationID: uuid.Must(uuid.NewV7()).String(), Class: "std", Pool: "big", At: time.Now()}
	told := labelOf(&known, 1)
	told.Known = &known
	for _, l := range []Label{l, l, told} {
		if err := s.PutLabel(t.Context(), l); err != nil {
			t.Fatal(err)
		}
	}
	var n int
	if err := s.pool.QueryRow(t.Context(), `select count(*) from weir.answers where pool = 'big' and class = 'std' and model = '' and score >= .5`).Scan(&n); err != nil || n != 2 {
		t.Errorf("%d answers, %v", n, err)
	}
	if all, err := s.Arms(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("%+v, %v", all, err)
	}
}

func TestAnswersAreSwept(t *testing.T) {
	s := open(t)
	acme := tenant(t, s, "acme").ID
	answers := note(t, s, acme, "a", 4)
	if err := s.PutLabel(t.Context(), labelOf(&answers[0], 1)); err != nil {
		t.Fatal(err)
	}
	if err := s.PutLabel(t.Context(), labelOf(&answers[1], 1)); err != nil {
		t.Fatal(err)
	}
	if err := s.SweepAnswers(t.Context(), answers[3].At, answers[1].At); err != nil {
		t.Fatal(err)
	}
	var left string
	if err := s.pool.QueryRow(t.Context(), `select string_agg(operation_id::text, ' ' order by answered_at) from weir.answers`).Scan(&left); err != nil || left != answers[1].OperationID+" "+answers[3].OperationID {
		t.Errorf("left %s, %v", left, err)
	}
}
