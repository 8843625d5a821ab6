package poolse2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/weirhq/weir/internal/demo"
	"github.com/weirhq/weir/internal/testproc"
)

// TestEdgeOutlivesAGateway kills the gateway that has an edge node's request
// before the first byte: the other one answers the same operation, and of its two
// rows one is ok and the dead gateway's costs nothing.
func TestEdgeOutlivesAGateway(t *testing.T) {
	f := emptyFleet(t, loopback{})
	f.instance(t, "m1", "mixed", "fake-engine", "--model", model, "--weir", "--name", "m1", "--role", "mixed", "--itl", "1ms", "--log-level", "error")
	f.gateways(t, true)
	f.edge(t, f.tlsURL(t, "g1"), f.tlsURL(t, "g2"))
	f.put(t, "m1", "faults", "stall")
	got := make(chan answer, 1)
	go func() { got <- f.ask(t.Context(), "edge", 1, 8, true) }()
	eventually(t, "the instance has the first gateway's request", func() bool { return f.gauge("g1", "weir_gateway_in_flight") == 1 && f.runs("m1") == 1 })
	f.put(t, "m1", "faults", "")
	f.all["g1"].kill()
	a := <-got
	if !a.whole() || a.attempts != 2 {
		t.Fatalf("%+v", a)
	}
	f.all["g1"].start(t) // it settles what it had begun
	if rows := f.outcomes(t, a.operation, 2); rows != "gateway_lost ok" {
		t.Errorf("the ledger says %q", rows)
	}
}

// edge starts an edge node of the gateways at urls, which knows the key.
func (f *fleet) edge(t *testing.T, urls ...string) {
	t.Helper()
	join := filepath.Join(f.dir, "join")
	if _, err := demo.Ensure(t.Context(), demo.Options{CloudURL: f.all["g1"].url, HTTP: f.http, AdminToken: f.admin, KeyFile: filepath.Join(f.dir, "key"), JoinFile: join}); err != nil {
		t.Fatal(err)
	}
	worker, listen, ops := testproc.FreeAddr(t), testproc.FreeAddr(t), testproc.FreeAddr(t)
	f.add(t, "edge-worker", "http://"+worker, "", nil, "fake-engine", "--model", "small", "--weir", "--name", "edge-worker", "--role", "mixed", "--listen", worker, "--log-level", "error")
	f.add(t, "edge", "http://"+listen, "http://"+ops, nil, "edge", "run", "--listen", listen, "--ops-listen", ops, "--data-dir", filepath.Join(f.dir, "edge"),
		"--cloud-urls", strings.Join(urls, ","), "--join-token-file", join, "--udp", "off",
		"--worker-url", "http://"+worker, "--model", "small", "--cloud-models", model, "--first-byte", "80s", "--stall", "60s", "--log-level", "warn")
	eventually(t, "the edge node knows the key", func() bool { return f.get(f.all["edge"].url+"/v1/models", f.key, &struct{}{}) == nil })
	eventually(t, "its link is up", func() bool { return f.gauge("edge", "weir_edge_uplink_up") == 1 })
}

// tlsURL is where devices reach a gateway.
func (f *fleet) tlsURL(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(f.dir, name+".yaml"))
	var c struct {
		Cloud struct {
			Listen string `yaml:"tls_listen"`
		}
	}
	if err == nil {
		err = yaml.Unmarshal(raw, &c)
	}
	if err != nil {
		t.Fatal(err)
	}
	return "https://" + c.Cloud.Listen
}
