package poolse2e

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weirhq/weir/engine/gguf"
	"github.com/weirhq/weir/engine/gguf/random"
	"github.com/weirhq/weir/internal/pki"
)

// library is the folder of llama.cpp's libraries.
func library(t *testing.T) string {
	t.Helper()
	lib := os.Getenv("WEIR_LIB")
	if lib == "" {
		t.Skip("WEIR_LIB is not set: it names the folder of llama.cpp's libraries")
	}
	return lib
}

// randomModel writes a model with random weights. Where they are not quantised,
// neither are the activations that they meet: then other shapes of a batch move
// the logits by little.
func (f *fleet) randomModel(t *testing.T, params int64, weights gguf.Type) string {
	t.Helper()
	file := filepath.Join(f.dir, "random.gguf")
	if _, err := random.WriteFile(file, random.Options{Arch: "llama", Params: params, Context: 4096, Type: weights, Seed: 1}); err != nil {
		t.Fatal(err)
	}
	return file
}

// workers starts workers of the model in file on llama.cpp, as one pool.
func (f *fleet) workers(t *testing.T, file string, names ...string) {
	t.Helper()
	f.pool(t, served{model: model, file: file, runner: "llama", seqs: 64, cache: "on"}, names...)
}

// served is a model as a pool serves it.
type served struct {
	model, file, runner string
	seqs                int
	cache               string
	flags               []string // further ones
}

// exactly serves a model so that nothing but the batch moves its logits: with KV
// buffers that sequences do not share, and every prompt computed in one piece.
func exactly(model, file, runner string) served {
	return served{model: model, file: file, runner: runner, seqs: 16, cache: "off"}
}

// pool starts workers with certificates; their roles are those of their first
// letters. Their streams move when they drain only, and not because the test's
// machine has little memory or is slow.
func (f *fleet) pool(t *testing.T, s served, names ...string) {
	t.Helper()
	lib := library(t)
	f.movesOn = "drain"
	for _, name := range names {
		role := map[byte]string{'p': "prefill", 'd': "decode", 'm': "mixed"}[name[0]]
		addr := f.addr(t, name)
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			t.Fatal(err)
		}
		certs := filepath.Join(f.dir, name)
		if err := f.authority.IssueTo(certs, pki.Spec{Peer: pki.Peer{Role: pki.RoleWorker, Name: name}, Hosts: []string{host}}); err != nil {
			t.Fatal(err)
		}
		args := append([]string{"worker", "--model", s.file, "--served-model-name", s.model, "--runner", s.runner, "--name", name,
			"--role", role, "--lib", lib, "--threads", "1", "--max-seqs", strconv.Itoa(s.seqs), "--prefix-cache", s.cache, "--kv-patience", "30s", "--memory-stalls", "0", "--log-level", "error", "--listen", addr,
			"--tls-cert", filepath.Join(certs, pki.CertFile), "--tls-key", filepath.Join(certs, pki.KeyFile), "--tls-ca", filepath.Join(certs, pki.CAFile)}, s.flags...)
		f.add(t, name, f.scheme()+addr, "", nil, args...)
		f.members = append(f.members, map[string]any{"name": name, "url": f.scheme() + addr, "role": role, "model": s.model})
	}
}

// scheme is that of a worker's API: loopback needs no certificate there, only
// for KV.
func (f *fleet) scheme() string {
	if f.site == (loopback{}) {
		return "http://"
	}
	return "https://"
}

// TestWorkerKilledWithRealModel kills the worker that streams an answer of the
// bundled model: the client gets the text that it would have got, token by
// token, and no sign of the death.
func TestWorkerKilledWithRealModel(t *testing.T) {
	library(t)
	f := emptyFleet(t, loopback{})
	f.pool(t, exactly(model, "hub-cloud", "moe"), "m1", "m2") // what one has shown the other computes in another batch
	f.gateways(t, true)
	const tokens = 1500 // more than is made before the kill
	want := f.ask(t.Context(), "g1", 1, tokens, false)
	if !want.whole() || want.text == "" {
		t.Fatalf("before anything happened: %+v", want)
	}
	var victim *process
	got := f.ask(t.Context(), "g1", 1, tokens, true, func() {
		for _, in := range f.pools("g1") {
			if in.InFlight.Requests > 0 {
				victim = f.all[in.Name]
			}
		}
		if victim == nil {
			t.Error("no worker has the stream")
			return
		}
		victim.kill()
	})
	if !got.whole() || got.text != want.text {
		t.Errorf("got %+v\nwant the text %q", got, want.text)
	}
	f.outcomes(t, got.operation, 2)
	if victim != nil {
		victim.start(t)
		f.ready(t, "g1")
		f.ready(t, "g2")
		f.idle(t)
	}
}

// row is an attempt in the ledger.
type row struct {
	Outcome string
	Input   int `json:"input_tokens"`
	Output  int `json:"output_tokens"`
}

// rows waits for so many rows of a request, sorted by their outcomes.
func (f *fleet) rows(t *testing.T, operation string, n int) []row {
	t.Helper()
	var l struct{ Rows []row }
	eventually(t, "rows in the ledger", func() bool {
		return f.get(f.all["g2"].url+"/admin/v1/usage?operation_id="+operation, f.admin, &l) == nil && len(l.Rows) == n
	})
	slices.SortFunc(l.Rows, func(a, b row) int { return strings.Compare(a.Outcome, b.Outcome) })
	return l.Rows
}

// outcomes waits for a request's rows and names how they ended.
func (f *fleet) outcomes(t *testing.T, operation string, n int) string {
	t.Helper()
	var out []string
	for _, r := range f.rows(t, operation, n) {
		out = append(out, r.Outcome)
	}
	return strings.Join(out, " ")
}
