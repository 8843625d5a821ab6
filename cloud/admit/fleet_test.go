package admit_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirhq/weir/cloud"
	"github.com/weirhq/weir/engine/fake"
	"github.com/weirhq/weir/internal/cli"
	"github.com/weirhq/weir/internal/proc"
	"github.com/weirhq/weir/internal/testpg"
	"github.com/weirhq/weir/internal/testproc"
	"github.com/weirhq/weir/migrations"
	"github.com/weirhq/weir/tenants"
)

// asGateway makes the test binary a gateway process.
const asGateway = "WEIR_TEST_AS_GATEWAY"

func TestMain(m *testing.M) {
	if os.Getenv(asGateway) != "" {
		env := cli.Env{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv}
		os.Exit(cli.Main(context.Background(), env, []cli.Command{cloud.Command()}, os.Args[1:]))
	}
	os.Exit(testpg.Run(m))
}

// fleet is some gateway processes on one database, before one fake engine.
type fleet struct {
	t       *testing.T
	url     string // of the database
	db      *pgxpool.Pool
	engine  *httptest.Server
	second  *httptest.Server // of the same model; nil: none
	secrets string
	nodes   []*node
	tenant  string
	key     string
	keyID   string
	client  *http.Client
}

// node is one gateway: its place on disk outlives its processes.
type node struct {
	f        *fleet
	api, ops string
	dir      string
	log      *testproc.Log
	child    *proc.Child
}

// limit is a row of weir.limits.
type limit struct {
	kind, window string
	max          int64
	burst        int64
	shadow       bool
	key          string
	model, class string
	tier         string
}

// newFleet starts n gateways for one tenant with limits, before a fake engine.
func newFleet(t *testing.T, url string, n int, engine fake.Options, strict bool, limits ...limit) *fleet {
	t.Helper()
	engine.Model = "m"
	return newFleetOn(t, url, n, fake.New(engine), strict, limits...)
}

// newFleetOn is newFleet before another engine of the model m.
func newFleetOn(t *testing.T, url string, n int, engine http.Handler, strict bool, limits ...limit) *fleet {
	t.Helper()
	if err := migrations.Up(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	db, err := pgxpool.New(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	f := &fleet{t: t, url: url, db: db, engine: httptest.NewServer(engine), secrets: t.TempDir(),
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}}}
	t.Cleanup(f.engine.Close)
	t.Cleanup(f.client.CloseIdleConnections)
	f.newTenant(strict, limits)
	f.exec(`insert into weir.prices (tier, model, effective_from, input, cached_input, output) values ('cloud', 'm', '2000-01-01Z', 100000, 25000, 400000)
		on conflict do nothing`)
	f.start(n)
	return f
}

// start adds n gateways and waits until they are ready.
func (f *fleet) start(n int) {
	f.t.Helper()
	for range n {
		f.addNode()
	}
	for _, n := range f.nodes {
		n.awaitReady()
	}
	if len(f.nodes) > 1 {
		f.awaitPeers(len(f.nodes))
	}
}

// newTenant makes a tenant with a key and limits the fleet's.
func (f *fleet) newTenant(strict bool, limits []limit) {
	f.t.Helper()
	f.tenant = uuid.NewString()
	f.exec(`insert into weir.tenants (id, name, strict) values ($1, $2, $3)`, f.tenant, "t-"+f.tenant, strict)
	for i, l := range limits {
		key := any(nil)
		if l.key != "" {
			key = l.key
		}
		f.exec(`insert into weir.limits (id, tenant_id, key_id, kind, window_, limit_, burst, shadow, model, class, tier)
			values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`,
			fmt.Sprintf("%s-%d", f.tenant[:8], i), f.tenant, key, l.kind, l.window, l.max, l.burst, l.shadow, l.model, l.class, l.tier)
	}
	f.keyID, f.key = f.newKey() // last: who knows it knows the limits
}

// of is the same gateways for another tenant, once they know it.
func (f *fleet) of(t *testing.T, strict bool, limits ...limit) *fleet {
	t.Helper()
	other := *f
	other.t, other.nodes = t, nil
	other.newTenant(strict, limits)
	for _, n := range f.nodes {
		n := *n
		n.f = &other
		other.nodes = append(other.nodes, &n)
		n.awaitReady()
	}
	return &other
}

func (f *fleet) newKey() (id, key string) {
	k, err := tenants.MintKey()
	if err != nil {
		f.t.Fatal(err)
	}
	sum := tenants.HashSecret(k.Secret)
	f.exec(`insert into weir.api_keys (id, tenant_id, sha256) values ($1, $2, $3)`, k.ID, f.tenant, sum[:])
	return k.ID, k.Reveal()
}

// rotate gives the fleet's key a new secret and returns it; the old one holds
// for the grace.
func (f *fleet) rotate(grace time.Duration) string {
	k, err := tenants.MintKey()
	if err != nil {
		f.t.Fatal(err)
	}
	k.ID = f.keyID
	sum := tenants.HashSecret(k.Secret)
	f.exec(`update weir.api_keys set prev_sha256 = sha256, prev_not_after = now() + $3::interval, sha256 = $2 where id = $1`, f.keyID, sum[:], grace)
	return k.Reveal()
}

func (f *fleet) exec(sql string, args ...any) {
	f.t.Helper()
	if _, err := f.db.Exec(context.Background(), sql, args...); err != nil {
		f.t.Fatalf("%s: %v", sql, err)
	}
}

func (f *fleet) number(sql string, args ...any) (n int64) {
	f.t.Helper()
	if err := f.db.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		f.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// addNode makes a node and starts its first process.
func (f *fleet) addNode() *node {
	f.t.Helper()
	n := &node{f: f, api: testproc.FreeAddr(f.t), ops: testproc.FreeAddr(f.t), dir: f.t.TempDir(), log: &testproc.Log{}}
	conf := fmt.Sprintf("cloud:\n  name: gw%d\n  listen: %s\n  tls_listen: %s\n  ops_listen: %s\n  secrets_dir: %s\n  data_dir: %s\n"+
		"  probe_interval: 100ms\n  drain: 2s\n  instances:\n  - {name: e, url: %q, model: m, role: mixed}\n",
		len(f.nodes), n.api, testproc.FreeAddr(f.t), n.ops, f.secrets, filepath.Join(n.dir, "data"), f.engine.URL)
	if f.second != nil {
		conf += fmt.Sprintf("  - {name: e2, url: %q, model: m, role: mixed}\n", f.second.URL)
	}
	if err := os.WriteFile(filepath.Join(n.dir, "c.yaml"), []byte(conf), 0o600); err != nil {
		f.t.Fatal(err)
	}
	f.nodes = append(f.nodes, n)
	n.start()
	if len(f.nodes) == 1 {
		n.awaitReady() // it makes the secrets that the others read
	}
	f.t.Cleanup(n.kill)
	f.t.Cleanup(func() {
		if f.t.Failed() {
			text := n.log.String()
			f.t.Logf("log of %s:\n%s", n.api, text[max(0, len(text)-4000):])
		}
	})
	return n
}

func (n *node) start() {
	n.f.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		n.f.t.Fatal(err)
	}
	n.child, err = proc.Start(proc.Spec{Name: "gateway", Path: exe, Args: []string{"cloud", "--config", filepath.Join(n.dir, "c.yaml"), "--log-level", "warn"},
		Env: []string{asGateway + "=1", "WEIR_DATABASE_URL=" + n.f.url}, Output: n.log})
	if err != nil {
		n.f.t.Fatal(err)
	}
}

// kill is kill -9.
func (n *node) kill() {
	n.child.Kill()
	<-n.child.Done()
}

// end lets the process drain.
func (n *node) end() {
	n.f.t.Helper()
	n.child.Stop(time.Minute)
	if err := n.child.Err(); err != nil {
		n.f.t.Fatalf("a gateway does not end: %v", err)
	}
}

func (n *node) status() string {
	resp, err := n.f.client.Get("http://" + n.ops + "/readyz")
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	var h struct {
		Status string `json:"status"`
		Ready  int    `json:"instances_ready"`
	}
	if json.NewDecoder(resp.Body).Decode(&h) != nil || h.Ready == 0 {
		return "no instance"
	}
	return h.Status
}

func (n *node) awaitReady() {
	n.f.t.Helper()
	eventually(n.f.t, "a gateway is ready", func() bool { return n.status() == "ready" })
	n.awaitKey(n.f.key)
}

func (n *node) awaitKey(key string) {
	n.f.t.Helper()
	eventually(n.f.t, "the key is known", func() bool {
		req, _ := http.NewRequest(http.MethodGet, "http://"+n.api+"/v1/models", nil)
		req.Header.Set("Authorization", "Bearer "+key)
		resp, err := n.f.client.Do(req)
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

// awaitPeers waits until all know of all.
func (f *fleet) awaitPeers(n int) {
	f.t.Helper()
	for _, node := range f.nodes {
		eventually(f.t, "a gateway knows the others", func() bool { return node.metric("weir_admission_gateways") == fmt.Sprint(n) })
	}
}

// metric returns the value of a metric without labels.
func (n *node) metric(name string) string {
	resp, err := n.f.client.Get("http://" + n.ops + "/metrics")
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// reply is an answer that was read to its end, or the error that cut it.
type reply struct {
	status int
	header http.Header
	body   string
	err    error
}

func (r reply) code() string {
	var e struct{ Error struct{ Code string } }
	_ = json.Unmarshal([]byte(r.body), &e)
	return e.Error.Code
}

const hi = `"messages":[{"role":"user","content":"turn on the light"}]`

// ask sends one chat request. more is further members of the body.
func (n *node) ask(ctx context.Context, more string) reply {
	return n.askAs(ctx, n.f.key, more)
}

// askOf asks a model by its name.
func (n *node) askOf(ctx context.Context, model, more string) reply {
	return n.send(ctx, n.f.key, fmt.Sprintf(`{"model":%q,%s%s}`, model, hi, more))
}

func (n *node) askAs(ctx context.Context, key, more string) reply {
	return n.send(ctx, key, `{"model":"m",`+hi+more+`}`)
}

func (n *node) send(ctx context.Context, key, body string) reply {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+n.api+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return reply{err: err}
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+key)
	resp, err := n.f.client.Do(req)
	if err != nil {
		return reply{err: err}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, string(b), err}
}

// parallel sends n requests at once, in turn to the nodes, and counts statuses.
func (f *fleet) parallel(n int, more string) map[int]int {
	got := make(chan int, n)
	for i := range n {
		go func() { got <- f.nodes[i%len(f.nodes)].ask(context.Background(), more).status }()
	}
	out := map[int]int{}
	for range n {
		out[<-got]++
	}
	return out
}

// used is what the store counts for the fleet's budgets: reports of the living
// and what was counted for the dead.
func (f *fleet) used(kind string) int64 {
	return f.number(`select coalesce(sum(b.closed), 0) + coalesce((select sum(l.used) from weir.budget_leases l
		join weir.budgets c using (tenant_id, limit_id, key_id, window_, period) where c.tenant_id = $1 and c.kind = $2 and not l.final), 0)
		from weir.budgets b where b.tenant_id = $1 and b.kind = $2`, f.tenant, kind)
}

// ledgered is what the ledger says of the same.
func (f *fleet) ledgered(expr string) int64 {
	return f.number(`select coalesce(sum(`+expr+`), 0) from weir.usage_ledger where tenant_id = $1`, f.tenant)
}

// reserved is what gateways have reported as reserved.
func (f *fleet) reserved() int64 {
	return f.number(`select coalesce(sum(reserved), 0) from weir.budget_leases where tenant_id = $1 and not final`, f.tenant)
}
