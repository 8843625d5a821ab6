package store

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
)

// Scored answers come in pages, each once, oldest first, also those of one moment;
// others do not come.
func TestScoredAnswers(t *testing.T) {
	s := open(t)
	owner := tenant(t, s, "acme").ID
	at := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	var want []string
	for i := range 25 {
		a := Answer{TenantID: owner, OperationID: uuid.Must(uuid.NewV7()).String(), Model: []string{"auto", "any", ""}[i%3], Class: "std", Pool: "a",
			Propensity: .25, At: at.Add(time.Duration(i/6) * time.Second)}
		keep(t, s, a)
		if i%5 == 4 {
			continue // nobody has scored it
		}
		l := labelOf(&a, .75)
		if err := s.PutLabel(t.Context(), l, testMemory); err != nil {
			t.Fatal(err)
		}
		if a.Model == "auto" && a.At.Before(at.Add(3*time.Second)) {
			want = append(want, a.OperationID)
		}
	}
	var got []string
	var after Scored
	for {
		page, err := s.ScoredAnswers(t.Context(), ScoredIn{From: at, To: at.Add(3 * time.Second), Model: "auto"}, after, 2)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		after = page[len(page)-1]
		for _, a := range page {
			if a.Model != "auto" || a.Class != "std" || a.Pool != "a" || a.Propensity != .25 || a.Score != .75 || a.Kind != "feedback" || a.TenantID != owner {
				t.Errorf("%+v", a)
			}
			got = append(got, a.OperationID)
		}
	}
	if len(want) == 0 || !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
