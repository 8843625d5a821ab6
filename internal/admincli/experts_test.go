package admincli

import (
	"strings"
	"testing"

	"github.com/weirhq/weir/internal/cli"
)

// weirExperts runs "weir experts ARGS" against the fake.
func (f *fake) weirExperts(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return f.runOf(t, []cli.Command{{Name: "experts", Sub: ExpertsCommands()}}, append([]string{"experts"}, args...)...)
}

func TestExpertsStatus(t *testing.T) {
	f := newFake(t)
	f.answer = `{"data":[{"instance":"dense","model":"hub-edge","role":"mixed","problem":"balances no experts"},
		{"instance":"d1","model":"hub-cloud","role":"decode","experts":{"layers":1,"experts":2,"generation":3,"placement":[[0,1,0]],
		"shards":[{"slots":2,"bytes":2000000,"sent":9},{"slots":1,"bytes":1000000,"lost":true}],"copied_bytes":5000000,"windows":4,"moves":3,
		"window":{"tokens":100,"demand":[[60,40]]},"imbalance":[1.4],"imbalance_mean":1.4,"imbalance_max":1.4,
		"decisions":[{"action":"move","reason":"skewed","imbalance":1.6,"target":1.4,"transfers":2,"layers":1}]}}]}`
	code, out, errs := f.weirExperts(t, "status")
	for _, want := range []string{"dense  hub-edge  mixed  balances no experts", "generation 3, 4 windows, 3 moves, 0 failed, 5.0 MB copied",
		"shard 1: 1 slots, 1.0 MB, 0 tokens  LOST", "layer   0    1.400", "████", "latest: move (skewed), imbalance 1.600, target 1.400, 2 transfers in 1 layers"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if code != 0 || errs != "" || f.call != "GET /admin/v1/experts" {
		t.Errorf("exit %d, %q, %s", code, errs, f.call)
	}
}

func TestExpertsRebalance(t *testing.T) {
	f := newFake(t)
	f.answer = `{"instance":"d1","decision":{"action":"stay","reason":"balanced","imbalance":1.02}}`
	if code, out, _ := f.weirExperts(t, "rebalance", "d1"); code != 0 || out != "d1: stay (balanced), imbalance 1.020\n" || f.call != "POST /admin/v1/experts/d1/rebalance" {
		t.Errorf("exit %d, %q, %s", code, out, f.call)
	}
	if code, _, _ := f.weirExperts(t, "rebalance", "d/1", "--dry-run"); code != 0 || f.call != "POST /admin/v1/experts/d%2F1/plan" {
		t.Errorf("exit %d, %s", code, f.call)
	}
	f.answer = `{"instance":"d1","decision":{"action":"move","reason":"move_failed","imbalance":1.5},"error":"checksum"}`
	if code, _, errs := f.weirExperts(t, "rebalance", "d1"); code != 1 || !strings.Contains(errs, "old placement is in force: checksum") {
		t.Errorf("exit %d, %q", code, errs)
	}
	if code, _, errs := f.weirExperts(t, "rebalance"); code != cli.ExitUsage || strings.Count(errs, "\n") != 1 {
		t.Errorf("exit %d, %q", code, errs)
	}
}
