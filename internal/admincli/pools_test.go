package admincli

import (
	"strings"
	"testing"

	"github.com/weirhq/weir/internal/cli"
)

func (f *fake) weirPools(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return f.runOf(t, []cli.Command{PoolsCommand()}, append([]string{"pools"}, args...)...)
}

func TestPoolsStatus(t *testing.T) {
	f := newFake(t)
	f.answer = `{"data":[{"name":"p1","model":"hub-cloud","role":"prefill","from":"joined","heartbeat_age_ms":1250,"ready":true,"share":1,"age_ms":12,"breaker":"closed","in_flight":{"requests":2},
		"report":{"age_ms":40,"running":2,"waiting":3,"kv_tokens":1000,"kv_tokens_free":750,"hit_rate":0.5,"step_ms":7.25,
		"transfers":[{"peer":"127.0.0.1:7424","pulls":9,"failures":1,"bytes":80000000,"seconds":0.5}]}},
		{"name":"d\u001b1","model":"hub-cloud","role":"decode","ready":false,"share":1,"age_ms":-1,"breaker":"open","failures":3,"problem":"probe: refused",
		"last_failure":{"message":"broke off","age_ms":1500}},
		{"name":"d2","ready":true,"suspect":true,"share":1,"warning":"several weights"},{"name":"d3","ready":true,"share":0.25,"moves":{"gave":{"drain":0,"failing":0,"balance":7},"took":0}},{"name":"d4","leaving":true,"from":"static","breaker":"half_open","untried_ms":900400}]}`
	code, out, errs := f.weirPools(t, "status")
	for _, want := range []string{"RUNS+WAITS", "joined 1.25s", "static", "leaving", "2+3", "25%", "50%", "7.2ms", "40ms", "out", "never", "open", "suspect", "d 1: probe: refused",
		"d 1: last failure 1.5s ago: broke off", "p1: pulled 9 hand-offs (1 failed), 80.0 MB from 127.0.0.1:7424, 160 MB/s", "d3: gave 7 streams away: balance", "-7+0", "half_open 15m0s untried", "d2: warning: several weights"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if n := strings.Count(out, "streams"); n != 1 {
		t.Errorf("%d lines of moves, want no line of nothing:\n%s", n, out)
	}
	if code != 0 || errs != "" || f.call != "GET /admin/v1/pools" {
		t.Errorf("exit %d, %q, %s", code, errs, f.call)
	}
	if code, out, _ := f.weirPools(t, "status", "--json"); code != 0 || !strings.Contains(out, `"kv_tokens": 1000`) {
		t.Errorf("exit %d, %s", code, out)
	}
}

func TestPoolsOrders(t *testing.T) {
	f := newFake(t)
	f.answer = `{"instance":"d1","role":"mixed"}`
	if code, out, _ := f.weirPools(t, "role", "d1", "mixed"); code != 0 || !strings.Contains(out, "mixed") || f.call != "POST /admin/v1/pools/d1/role" {
		t.Errorf("exit %d, %q, %s", code, out, f.call)
	}
	f.answer = `{"instance":"d1","draining":true,"requests":4}`
	if code, out, _ := f.weirPools(t, "drain", "d1"); code != 0 || !strings.Contains(out, "4") || f.call != "POST /admin/v1/pools/d1/drain" {
		t.Errorf("exit %d, %q, %s", code, out, f.call)
	}
	if code, out, _ := f.weirPools(t, "forget", "d/1"); code != 0 || out != "d/1 is a member no more\n" || f.call != "DELETE /admin/v1/instances/d%2F1" {
		t.Errorf("exit %d, %q, %s", code, out, f.call)
	}
	for _, args := range [][]string{{"role", "d1"}, {"drain"}, {"forget"}, {"status", "d1"}} {
		if code, _, errs := f.weirPools(t, args...); code != cli.ExitUsage || strings.Count(errs, "\n") != 1 {
			t.Errorf("%v: exit %d, %q", args, code, errs)
		}
	}
}
