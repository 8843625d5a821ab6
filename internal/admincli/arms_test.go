package admincli

import (
	"strings"
	"testing"
)

func TestPoolsArms(t *testing.T) {
	f := newFake(t)
	f.answer = `{"object":"list","data":[{"model":"auto","class":"standard","pool":"large-a","mean":0.8123,"low":0.75,"high":0.86,"labels":120,"weight":113.5,"updated_at":"2026-11-30T09:00:00Z"}]}`
	code, out, errs := f.weirPools(t, "arms")
	if code != 0 || errs != "" || f.call != "GET /admin/v1/arms" {
		t.Errorf("%d %s %s", code, errs, f.call)
	}
	for _, want := range []string{"auto", "standard", "large-a", "0.812", "0.750-0.860", "120", "2026-11-30T09:00:00Z"} {
		if !strings.Contains(out, want) {
			t.Errorf("%s is not in %s", want, out)
		}
	}
	f.answer = `{"object":"list","data":[]}`
	if _, out, _ := f.weirPools(t, "arms"); !strings.Contains(out, "no answer") {
		t.Errorf("%s", out)
	}
}
