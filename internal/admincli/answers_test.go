package admincli

import (
	"net/url"
	"strings"
	"testing"
	"time"
)

func TestPoolsAnswers(t *testing.T) {
	f := newFake(t)
	f.answer = "answered_at,pool\n2026-11-30T09:00:00Z,large-a\n"
	code, out, errs := f.weirPools(t, "answers", "--since", "1h", "--model", "auto")
	if code != 0 || out != f.answer {
		t.Fatalf("%d %s%s", code, out, errs)
	}
	path, query, _ := strings.Cut(f.call, "?")
	q, err := url.ParseQuery(query)
	if err != nil || path != "GET /admin/v1/answers.csv" || q.Get("model") != "auto" {
		t.Errorf("%s, %v", f.call, err)
	}
	if from, err := time.Parse(time.RFC3339, q.Get("from")); err != nil || time.Since(from) < time.Hour || time.Since(from) > 2*time.Hour {
		t.Errorf("from %s, %v", q.Get("from"), err)
	}
	if f.weirPools(t, "answers", "--from", "2026-01-01T00:00:00Z"); f.call != "GET /admin/v1/answers.csv?from=2026-01-01T00%3A00%3A00Z" {
		t.Errorf("%s", f.call)
	}
	for _, bad := range [][]string{{"--since", "-1h"}, {"--since", "1h", "--from", "2026-01-01T00:00:00Z"}, {"x"}} {
		if code, _, _ := f.weirPools(t, append([]string{"answers"}, bad...)...); code != 2 {
			t.Errorf("%v: exit %d", bad, code)
		}
	}
}
