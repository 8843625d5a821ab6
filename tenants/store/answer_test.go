package store

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
)

const testWindow = 50

var testMemory = Memory{Decay: .99, Window: testWindow, Own: testWindow}

func note(t *testing.T, s *Store, owner, pool string, n int) []Answer {
	t.Helper()
	out := make([]Answer, n)
	for i := range out {
		out[i] = Answer{TenantID: owner, OperationID: uuid.Must(uuid.NewV7()).String(), Model: "auto", Class: "std", Pool: pool, Propensity: .5,
			At: time.Unix(1_790_000_000+int64(i), 0)}
	}
	for range 2 { // once each
		keep(t, s, out...)
	}
	return out
}

func keep(t *testing.T, s *Store, answers ...Answer) {
	t.Helper()
	if err := s.NoteAnswers(t.Context(), answers, testMemory); err != nil {
		t.Fatal(err)
	}
}

func labelOf(a *Answer, score float64) Label {
	return Label{TenantID: a.TenantID, OperationID: a.OperationID, Score: score}
}

// fold is what the sums should be: scores, oldest first.
func fold(scores []float64) (good, bad float64) {
	for _, y := range scores[max(0, len(scores)-testWindow):] {
		good, bad = testMemory.Decay*good+y, testMemory.Decay*bad+1-y
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
					if err := s.PutLabel(t.Context(), labelOf(&answers[i], score), testMemory); err != nil {
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
		if err := s.PutLabel(t.Context(), l, testMemory); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := arm(t, s, "a"); got.Labels != 0 {
		t.Errorf("%+v", got)
	}
}

// Checks of answers are labels too, of those that hold as of those that break, and
// a user's word is not a check's to replace.
func TestLabelsOfForms(t *testing.T) {
	s := open(t)
	acme := tenant(t, s, "acme").ID
	held, broke := 1.0, 0.0
	a := note(t, s, acme, "a", 3)
	a[0].Form, a[1].Form = &held, &broke
	for i := range a { // later, and as often as it takes
		a[i].At = a[i].At.Add(time.Second)
	}
	keep(t, s, a...)
	keep(t, s, a...)
	if got := arm(t, s, "a"); got.Labels != 2 || got.Good != testMemory.Decay || got.Bad != 1 {
		t.Errorf("%+v", got)
	}
	if err := s.PutLabel(t.Context(), labelOf(&a[1], 1), testMemory); err != nil {
		t.Fatal(err)
	}
	a[1].At = a[1].At.Add(time.Second)
	keep(t, s, a...)
	if got := arm(t, s, "a"); got.Labels != 2 || got.Bad != 0 {
		t.Errorf("%+v", got)
	}
}

// Of two answers to one operation the later one is scored, and another device's
// operation of the same id stays whose it is.
func TestAnswersToOneOperation(t *testing.T) {
	s := open(t)
	acme := tenant(t, s, "acme").ID
	a := note(t, s, acme, "a", 1)[0]
	again, foreign, broke := a, a, 0.0
	again.Pool, again.At = "b", a.At.Add(time.Second)
	foreign.Pool, foreign.At, foreign.DeviceID, foreign.Form = "c", a.At.Add(time.Minute), uuid.NewString(), &broke
	keep(t, s, again, foreign)
	keep(t, s, a)
	if err := s.PutLabel(t.Context(), labelOf(&a, 1), testMemory); err != nil {
		t.Fatal(err)
	}
	if a, b, c := arm(t, s, "a"), arm(t, s, "b"), arm(t, s, "c"); a.Labels != 0 || b.Good != 1 || c.Labels != 0 {
		t.Errorf("%+v, %+v, %+v", a, b, c)
	}
}

// One tenant's labels are a part of an arm's, however many it gives.
func TestATenantsPartOfAnArm(t *testing.T) {
	s := open(t)
	few, chatty := tenant(t, s, "few").ID, tenant(t, s, "chatty").ID
	m := Memory{Decay: 1, Window: testWindow, Own: 5}
	good, bad := note(t, s, few, "a", 3), note(t, s, chatty, "a", 20)
	for i := range good {
		if err := s.PutLabel(t.Context(), labelOf(&good[i], 1), m); err != nil {
			t.Fatal(err)
		}
	}
	for i := range bad {
		if err := s.PutLabel(t.Context(), labelOf(&bad[i], 0), m); err != nil {
			t.Fatal(err)
		}
	}
	if got := arm(t, s, "a"); got.Good != 3 || got.Bad != 5 || got.Labels != 8 {
		t.Errorf("%+v", got)
	}
}

// What the database can never take is told apart from a database that is away.
func TestRefusedAnswers(t *testing.T) {
	s := open(t)
	a := Answer{TenantID: tenant(t, s, "acme").ID, OperationID: uuid.Must(uuid.NewV7()).String(), Pool: strings.Repeat("p", 300), At: time.Now()}
	if err := s.NoteAnswers(t.Context(), []Answer{a}, testMemory); !errors.Is(err, ErrRefused) {
		t.Errorf("%v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.NoteAnswers(ended, []Answer{a}, testMemory); err == nil || errors.Is(err, ErrRefused) {
		t.Errorf("%v", err)
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
	unnoted := l
	unnoted.Noted = []string{"big"}
	if err := s.PutLabel(t.Context(), unnoted, testMemory); !errors.Is(err, ErrNotFound) {
		t.Errorf("an answer whose kind is noted, from the ledger: %v", err)
	}
	for _, l := range []Label{l, l, told} {
		if err := s.PutLabel(t.Context(), l, testMemory); err != nil {
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
	if err := s.PutLabel(t.Context(), labelOf(&answers[0], 1), testMemory); err != nil {
		t.Fatal(err)
	}
	if err := s.PutLabel(t.Context(), labelOf(&answers[1], 1), testMemory); err != nil {
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
