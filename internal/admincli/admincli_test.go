package admincli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/weirhq/weir/internal/cli"
)

const secret = "wa_abcdefgh_0123456789012345678901234567890123456789012"

// fake is an admin API that notes the last call and answers what it is told.
type fake struct {
	*httptest.Server
	mu                         sync.Mutex // calls that were broken off may end late
	call, body, idempotencyKey string
	calls                      int
	answer                     string
	status                     int
	cut                        int // calls to break off first
}

func newFake(t *testing.T) *fake {
	f := &fake{status: 200, answer: `{"object":"list","data":[]}`}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.calls++
		if f.calls <= f.cut {
			panic(http.ErrAbortHandler)
		}
		if got := r.Header.Get("Authorization"); got != "Bearer "+secret {
			t.Errorf("authorization %q", got)
		}
		b, _ := io.ReadAll(r.Body)
		f.call, f.body, f.idempotencyKey = r.Method+" "+r.URL.RequestURI(), string(b), r.Header.Get("Idempotency-Key")
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(f.status)
		_, _ = io.WriteString(w, f.answer)
	}))
	t.Cleanup(f.Close)
	return f
}

// run runs a command line against the fake.
func (f *fake) run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return f.runOf(t, Commands(), args...)
}

func (f *fake) runOf(t *testing.T, commands []cli.Command, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	env := cli.Env{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Getenv: func(string) string { return "" }}
	code = cli.Main(context.Background(), env, commands, append(args, "--cloud-url", f.URL, "--admin-token-file", file))
	f.mu.Lock() // what the handler wrote is to be seen
	defer f.mu.Unlock()
	return code, out.String(), errs.String()
}

func TestCommandsMakeTheirCalls(t *testing.T) {
	f := newFake(t)
	for _, tc := range []struct{ line, call, body string }{
		{"tenants list --limit 5", "GET /admin/v1/tenants?limit=5", ""},
		{"tenants get a-b", "GET /admin/v1/tenants/a-b", ""},
		{"tenants create --name acme --weight 2.5 --strict", "POST /admin/v1/tenants", `{"name":"acme","strict":true,"weight":2.5}`},
		{"tenants update x --strict=false", "PATCH /admin/v1/tenants/x", `{"strict":false}`},
		{"admin-tokens create --role viewer --tenant-id T", "POST /admin/v1/admin-tokens", `{"role":"viewer","tenant_id":"T"}`},
		{"worker-tokens create --uses 2 --name rack", "POST /admin/v1/worker-tokens", `{"name":"rack","uses":2}`},
		{"worker-tokens revoke x", "POST /admin/v1/worker-tokens/x/revoke", `{}`},
		{"keys create --models auto,hub-cloud", "POST /admin/v1/keys", `{"models":["auto","hub-cloud"]}`},
		{"keys update k --models= --expires-at never", "PATCH /admin/v1/keys/k", `{"expires_at":null,"models":[]}`},
		{"admin-tokens rotate t1 --grace-seconds 60", "POST /admin/v1/admin-tokens/t1/rotate", `{"grace_seconds":60}`},
		{"keys rotate ../x --grace-seconds 60", "POST /admin/v1/keys/..%2Fx/rotate", `{"grace_seconds":60}`},
		{"keys revoke k", "POST /admin/v1/keys/k/revoke", `{}`},
		{"quotas create --kind requests --window minute --limit 60 --shadow", "POST /admin/v1/limits", `{"kind":"requests","limit":60,"shadow":true,"window":"minute"}`},
		{"quotas delete l", "DELETE /admin/v1/limits/l", ""},
		{"slo update gold --band 0", "PATCH /admin/v1/slo-classes/gold", `{"band":0}`},
		{"prices create --tier cloud --model * --input 9223372036854775807", "POST /admin/v1/prices", `{"input":9223372036854775807,"model":"*","tier":"cloud"}`},
		{`policies put --spec {"a":1} --threshold 0.5`, "PUT /admin/v1/policies", `{"spec":{"a":1},"threshold":0.5}`},
		{"policies delete --class batch", "DELETE /admin/v1/policies?class=batch", ""},
		{"audit list --action key.rotate", "GET /admin/v1/audit?action=key.rotate", ""},
		{"usage --bucket day --tz Europe/Paris", "GET /admin/v1/usage?bucket=day&limit=0&tz=Europe%2FParis", ""},
		{"usage --csv attempts --key-id k", "GET /admin/v1/usage.csv?key_id=k", ""},
		{"usage --csv sums", "GET /admin/v1/usage-sums.csv", ""},
	} {
		code, _, stderr := f.run(t, strings.Fields(tc.line)...)
		if code != 0 || f.call != tc.call || f.body != tc.body {
			t.Errorf("%s: exit %d, %s %s %s", tc.line, code, f.call, f.body, stderr)
		}
		if post := strings.HasPrefix(tc.call, "POST"); post != (f.idempotencyKey != "") {
			t.Errorf("%s: Idempotency-Key %q", tc.line, f.idempotencyKey)
		}
	}
}

func TestMistakesEndInOneLine(t *testing.T) {
	f := newFake(t)
	for _, line := range []string{"tenants get", "tenants get a b", "tenants list --nonsense", "quotas create --limit many", "slo create --weight heavy",
		"policies put --spec {", "usage --csv all", "keys list --cloud-url http://example.com", "keys list --cloud-url ftp://127.0.0.1"} {
		args := strings.Fields(line)
		code, stdout, stderr := 0, "", ""
		if strings.Contains(line, "--cloud-url") {
			var out, errs bytes.Buffer
			env := cli.Env{Stdout: &out, Stderr: &errs, Getenv: func(string) string { return secret }}
			code, stderr = cli.Main(t.Context(), env, Commands(), args), errs.String()
		} else {
			code, stdout, stderr = f.run(t, args...)
		}
		if code != cli.ExitUsage || stdout != "" || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: exit %d, %q, %q", line, code, stdout, stderr)
		}
	}
	if f.calls != 0 {
		t.Errorf("%d calls for nothing", f.calls)
	}
	f.status, f.answer = 403, `{"error":{"message":"the token's role does not allow this","type":"permission_error","code":"role"}}`
	if code, _, stderr := f.run(t, "tenants", "create"); code != 1 || stderr != "weir tenants create: the token's role does not allow this\n" {
		t.Errorf("refused: exit %d, %q", code, stderr)
	}
}

func TestTablesAndJSON(t *testing.T) {
	f := newFake(t)
	f.answer = `{"object":"list","data":[{"id":"k1","name":"a\u001b[2Jb","models":["auto","x"],"last_used_at":null},{"id":"k2","name":"","models":[]}],"next":"k2"}`
	code, stdout, stderr := f.run(t, "keys", "list")
	want := "ID  NAME    MODELS\nk1  a [2Jb  auto,x\nk2  -       -\n"
	if code != 0 || stdout != want || !strings.Contains(stderr, "--after k2") {
		t.Errorf("exit %d\n%q\n%q\nwant %q", code, stdout, stderr, want)
	}
	if _, stdout, _ = f.run(t, "keys", "list", "--json"); !strings.Contains(stdout, "\n  \"next\": \"k2\"") {
		t.Errorf("--json: %s", stdout)
	}
	f.answer = `{"id":"k1","key":"wk_x","limit":9007199254740993}`
	if _, stdout, _ = f.run(t, "keys", "create"); stdout != "id     k1\nkey    wk_x\nlimit  9007199254740993\n" {
		t.Errorf("one object: %q", stdout)
	}
	f.answer = `{"from":"a","to":"b","totals":{"requests":2,"attempts":3,"input_tokens":4,"output_tokens":5,"cost_nanousd":1500000},
		"groups":[{"tier":"cloud","model":"m","requests":2}],"rows":[]}`
	_, stdout, _ = f.run(t, "usage")
	if !strings.Contains(stdout, "a to b: 2 requests, 3 attempts, 4 tokens in, 5 out, $0.001500") || !strings.Contains(stdout, "cloud  m      2") {
		t.Errorf("usage: %q", stdout)
	}
}

// A call whose answer was lost is sent again with the same Idempotency-Key.
func TestLostAnswersAreAskedForAgain(t *testing.T) {
	f := newFake(t)
	f.cut = 2
	if code, _, stderr := f.run(t, "keys", "rotate", "k", "--idempotency-key", "again-1"); code != 0 || f.calls != 3 || f.idempotencyKey != "again-1" {
		t.Errorf("exit %d after %d calls, key %q: %s", code, f.calls, f.idempotencyKey, stderr)
	}
}

func TestEveryCommandExplainsItself(t *testing.T) {
	for _, c := range Commands() {
		lines := [][]string{{c.Name, "--help"}}
		for _, s := range c.Sub {
			lines = append(lines, []string{c.Name, s.Name, "--help"})
		}
		for _, line := range lines {
			var out, errs bytes.Buffer
			code := cli.Main(t.Context(), cli.Env{Stdout: &out, Stderr: &errs, Getenv: os.Getenv}, Commands(), line)
			if code != 0 || out.Len() == 0 || errs.Len() > 0 {
				t.Errorf("%s: exit %d, %s", fmt.Sprint(line), code, errs.String())
			}
		}
	}
}
