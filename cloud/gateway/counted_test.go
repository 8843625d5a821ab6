package gateway

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirhq/weir/cascade/policy"
	"github.com/weirhq/weir/internal/testpg"
	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/ledger"
	"github.com/weirhq/weir/tenants/report"
)

// postgres runs the tests, and takes the cluster down that one of them uses.
type postgres struct{ m *testing.M }

func (p postgres) Run() int { return testpg.Run(p.m) }

// However many attempts a request takes, the ledger counts it once.
func TestEachRequestIsCountedOnce(t *testing.T) {
	db, err := pgxpool.New(context.Background(), testpg.Start(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	var all []*instanceFake
	for _, name := range []string{"small", "mid", "big", "big2"} {
		f := newInstance(t, name, "mixed")
		f.model, f.weights = name, name
		all = append(all, f)
	}
	all[3].model = "big"
	verify, worth := &policy.Verify{Samples: 3}, &policy.Value{RightNano: 1e7}
	r := newRig(t, func(o *Options) {
		o.Models["three"] = layered(t, policy.Settings{Value: worth}, []string{"small", "mid", "big"}, .6, .85, .95)
		o.Models["two"] = polled(t, policy.Settings{Verify: verify}, 200, "small", "big")
	}, all...)
	type answer = func(http.ResponseWriter, *http.Request, map[string]any) bool
	var failed atomic.Bool
	failsOnce := func(w http.ResponseWriter, r *http.Request, body map[string]any) bool {
		return !failed.Swap(true) && says(503, `{}`)(w, r, body)
	}
	for _, tt := range []struct {
		name            string
		model           string
		small, mid, big answer
		rows            int
		counted         string // model of the row that counts
	}{
		{"two drafts give way", "three", smallSays("small talk", -3), midSays(-4), nil, 3, "big"},
		{"the second draft stays", "three", smallSays("small talk", -3), midSays(-.001), nil, 2, "mid"},
		{"votes turn the verdict", "two", votes(0, smallSays("small talk", -.2)), nil, nil, 3, "big"},
		{"votes leave it", "two", votes(1, smallSays("small talk", -.2)), nil, nil, 2, "small"},
		{"votes do not come", "two", func(w http.ResponseWriter, r *http.Request, body map[string]any) bool {
			return asksForVotes(body) && dies(w, r, body) || smallSays("small talk", -.2)(w, r, body)
		}, nil, nil, 2, "small"},
		{"a draft is lost", "two", dies, nil, nil, 2, "small"},
		{"a draft stands in", "two", smallSays("small talk", -4), nil, says(503, `{}`), 3, "big"},
		{"a retry", "big", nil, nil, failsOnce, 2, "big"},
	} {
		for i, f := range []answer{tt.small, tt.mid, tt.big, tt.big} {
			all[i].on(f)
		}
		from := time.Now().Add(-time.Minute)
		got := r.chat(t, `{"model":"`+tt.model+`","max_tokens":2,"messages":[{"role":"user","content":"hi"}]}`)
		rows := r.newRows(t)
		if _, err := ledger.NewStore(db).Insert(t.Context(), rows); err != nil {
			t.Fatal(err)
		}
		sums, err := report.Sum(t.Context(), db, report.Selection{TenantID: tenantA, From: from, To: time.Now().Add(time.Minute)}, report.Grouping{By: []string{"model"}}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		counted, attempts := "", int64(0)
		for _, g := range sums {
			if attempts += g.Attempts; g.Requests > 0 {
				counted += g.Model
			}
			if g.Requests > 1 {
				counted += " twice"
			}
		}
		if got.status != http.StatusOK || len(rows) != tt.rows || attempts != int64(tt.rows) || counted != tt.counted {
			t.Errorf("%s: %d %s: counted at %q, rows %s", tt.name, got.status, got.body, counted, numbersOf(rows))
		}
		if _, err := db.Exec(t.Context(), `truncate weir.usage_ledger, weir.usage_minute, weir.usage_hour`); err != nil {
			t.Fatal(err)
		}
	}
}

// numbersOf tells rows in short.
func numbersOf(rows []tenants.UsageRecord) (all []any) {
	for _, r := range rows {
		all = append(all, r.Model, r.Attempt, r.Outcome)
	}
	return all
}
