// Package poolse2e breaks pools of real processes: gateways, model servers
// (fake engines that speak as a Weir worker does) and Postgres. It holds tests
// only.
package poolse2e

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weirhq/weir/internal/demo"
	"github.com/weirhq/weir/internal/pki"
	"github.com/weirhq/weir/internal/proc"
	"github.com/weirhq/weir/internal/testpg"
	"github.com/weirhq/weir/internal/testproc"
)

// soak runs the full counts instead of the short ones.
var soak = os.Getenv("WEIR_SOAK") != ""

func count(short, full int) int {
	if soak {
		return full
	}
	return short
}

func TestMain(m *testing.M) {
	code := testpg.Run(m)
	testproc.Clean()
	os.Exit(code)
}

const model = "big"

// site is where a fleet's processes run. Each has a host of its own, or all
// share the loopback (nowhere else).
type site interface {
	host(t *testing.T, name string) string
	// within starts what f starts on the host of that name.
	within(t *testing.T, name string, f func())
}

type loopback struct{}

func (loopback) host(*testing.T, string) string              { return "127.0.0.1" }
func (loopback) within(_ *testing.T, _ string, start func()) { start() }

// process is one role that a test starts, kills and starts again.
type process struct {
	site  site
	name  string
	args  []string
	env   []string
	url   string // of its API
	ops   string // where it has one
	child *proc.Child
	log   *testproc.Log
}

func (p *process) start(t *testing.T) {
	t.Helper()
	bin, err := testproc.Binary()
	if err != nil {
		t.Fatal(err)
	}
	p.site.within(t, p.name, func() {
		p.child, err = proc.Start(proc.Spec{Name: p.name, Path: bin, Args: p.args, Env: p.env, Output: p.log})
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (p *process) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(p.child.PID(), s); err != nil {
		t.Fatalf("%s: %v", p.name, err)
	}
}

// kill ends the process at once and waits for it.
func (p *process) kill() {
	p.child.Kill()
	<-p.child.Done()
}

// fleet is two gateways over some instances.
type fleet struct {
	site       site
	dir        string // for files
	authority  *pki.Authority
	http       *http.Client // of clients and operators
	key, admin string
	all        map[string]*process
	members    []map[string]any
	movesOn    string         // cloud.moves; "" is the default
	cloud      map[string]any // further settings of g1
}

// emptyFleet has no process yet.
func emptyFleet(t *testing.T, s site) *fleet {
	t.Helper()
	f := &fleet{site: s, dir: t.TempDir(), all: map[string]*process{}}
	var err error
	if f.authority, err = pki.OpenAuthority(filepath.Join(f.dir, "secrets")); err != nil {
		t.Fatal(err)
	}
	f.http = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16, TLSClientConfig: &tls.Config{RootCAs: f.authority.Pool()}}}
	return f
}

// newFleet starts two prefill and two decode instances that make a token each
// itl, and gateways over them. patient gateways wait for as long as an
// overloaded machine may need. Each of more adds what the gateways are to know.
func newFleet(t *testing.T, s site, itl time.Duration, patient bool, more ...func(*fleet)) *fleet {
	t.Helper()
	f := emptyFleet(t, s)
	for _, name := range []string{"p1", "p2", "d1", "d2"} {
		role := map[byte]string{'p': "prefill", 'd': "decode"}[name[0]]
		f.instance(t, name, role, "fake-engine", "--model", model, "--weir", "--name", name, "--role", role,
			"--ttft", "20ms", "--itl", itl.String(), "--max-seqs", "2000", "--log-level", "error")
	}
	for _, add := range more {
		add(f)
	}
	f.gateways(t, patient)
	return f
}

// instance starts a model server; its pool has the model's name.
func (f *fleet) instance(t *testing.T, name, role string, args ...string) {
	t.Helper()
	addr := f.addr(t, name)
	f.add(t, name, "http://"+addr, "", nil, append(args, "--listen", addr)...)
	f.members = append(f.members, map[string]any{"name": name, "url": "http://" + addr, "role": role, "model": servedBy(args)})
}

// servedBy is the value of --model.
func servedBy(args []string) string { return args[slices.Index(args, "--model")+1] }

// gateways starts g1 and g2 with a database, and mints a key.
func (f *fleet) gateways(t *testing.T, patient bool) {
	t.Helper()
	dir, url := f.dir, testpg.Start(t)
	firstByte, stall := "5s", "3s"
	if patient {
		firstByte, stall = "80s", "60s"
	}
	for _, name := range []string{"g1", "g2"} {
		listen, tls, ops := testproc.FreeAddr(t), f.addr(t, name), f.addr(t, name)
		file := filepath.Join(dir, name+".yaml")
		settings := map[string]any{"name": name, "listen": listen, "tls_listen": tls, "ops_listen": ops,
			"secrets_dir": filepath.Join(dir, "secrets"), "data_dir": filepath.Join(dir, name), "instances": f.members, "log_level": "warn",
			"first_byte_timeout": firstByte, "stall_timeout": stall, "probe_interval": "500ms", "drain": "1s", "max_inflight": 4000}
		if f.movesOn != "" {
			settings["moves"] = f.movesOn
		}
		if name == "g1" {
			maps.Copy(settings, f.cloud)
		}
		content, err := yaml.Marshal(map[string]any{"cloud": settings})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
		api := "http://" + listen
		if f.site != (loopback{}) {
			api = "https://" + tls
		}
		f.add(t, name, api, "http://"+ops, []string{"WEIR_DATABASE_URL=" + url}, "cloud", "--config", file)
		f.ready(t, name)
	}
	t.Cleanup(func() {
		for _, in := range f.pools("g2") {
			if t.Failed() && in.Failing != "" {
				t.Logf("%s is about to fail: %s", in.Name, in.Failing)
			}
		}
	})
	token, err := os.ReadFile(filepath.Join(dir, "secrets", "admin-token"))
	if err != nil {
		t.Fatal(err)
	}
	f.admin = strings.TrimSpace(string(token))
	f.key, err = demo.Ensure(t.Context(), demo.Options{CloudURL: f.all["g1"].url, HTTP: f.http, AdminToken: f.admin, KeyFile: filepath.Join(dir, "key")})
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range []string{"g1", "g2"} {
		eventually(t, g+" knows the key", func() bool { r := f.ask(t.Context(), g, 0, 4, false); return r.status == http.StatusOK })
	}
}

// addr is a free address on a process's host.
func (f *fleet) addr(t *testing.T, name string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(testproc.FreeAddr(t))
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort(f.site.host(t, name), port)
}

func (f *fleet) add(t *testing.T, name, url, ops string, env []string, args ...string) {
	t.Helper()
	p := &process{site: f.site, name: name, args: args, env: env, url: url, ops: ops, log: &testproc.Log{}}
	p.start(t)
	f.all[name] = p
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%s: %s", name, p.log.Tail())
		}
	})
}

// ready waits until a gateway serves and has heard of every instance.
func (f *fleet) ready(t *testing.T, gateway string) {
	t.Helper()
	eventually(t, gateway+" is ready", func() bool {
		var h struct {
			Ready int `json:"instances_ready"`
		}
		return f.get(f.all[gateway].ops+"/readyz", "", &h) == nil && h.Ready == len(f.members)
	})
}

func (f *fleet) get(url, token string, out any) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := f.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", resp.StatusCode)
	}
	return json.NewDecoder(resp.Body).Decode(out)
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(60 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
	}
}

// pooled is an instance as a gateway tells of it.
type pooled struct {
	Name     string
	Role     string
	Model    string
	InFlight struct{ Requests int } `json:"in_flight"`
	Report   *struct {
		AgeMs            int64 `json:"age_ms"`
		Running, Waiting int
	}
	Ready   bool
	Suspect bool
	Failing string
	Moves   moved
}

// moved counts streams that left an instance, by cause, and that came.
type moved struct {
	Gave map[string]int
	Took int
}

func (f *fleet) pools(gateway string) []pooled {
	var l struct{ Data []pooled }
	if f.get(f.all[gateway].url+"/admin/v1/pools", f.admin, &l) != nil {
		return nil
	}
	return l.Data
}

// idle waits until nobody has anything under way any more.
func (f *fleet) idle(t *testing.T) {
	t.Helper()
	for _, g := range []string{"g1", "g2"} {
		eventually(t, "nothing in flight at "+g, func() bool {
			list := f.pools(g)
			busy := slices.ContainsFunc(list, func(in pooled) bool {
				return in.InFlight.Requests != 0 || in.Report == nil || in.Report.Running+in.Report.Waiting != 0
			})
			return len(list) == len(f.members) && !busy && f.gauge(g, "weir_gateway_in_flight") == 0
		})
	}
}

// gauge reads a metric of a gateway, -1 when it cannot.
func (f *fleet) gauge(gateway, name string) float64 { return f.metric(f.all[gateway].ops, name) }

// metric reads the first series of a metric, -1 when it cannot.
func (f *fleet) metric(url, name string) float64 {
	if all := f.series(url, name, ""); len(all) > 0 {
		return all[0]
	}
	return -1
}

// worker sums those series of a worker's metric that have the label.
func (f *fleet) worker(t *testing.T, name, metric, label string) (sum float64) {
	t.Helper()
	all := f.series(f.all[name].url, metric, label)
	if len(all) == 0 {
		t.Fatalf("%s has no metric %s of %q", name, metric, label)
	}
	for _, n := range all {
		sum += n
	}
	return sum
}

// series reads those series of a metric that have the label.
func (f *fleet) series(url, name, label string) (all []float64) {
	resp, err := f.http.Get(url + "/metrics")
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(body)) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if series != name && !strings.HasPrefix(series, name+"{") || !strings.Contains(series, label) {
			continue
		}
		if n, err := strconv.ParseFloat(value, 64); err == nil {
			all = append(all, n)
		}
	}
	return all
}
