package worker_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/engine/gguf"
	"github.com/weirhq/weir/engine/llama/llamatest"
	"github.com/weirhq/weir/engine/worker"
	"github.com/weirhq/weir/engine/worker/cost"
	"github.com/weirhq/weir/engine/worker/runnertest"
	"github.com/weirhq/weir/engine/worker/state"
	"github.com/weirhq/weir/internal/cli"
	"github.com/weirhq/weir/internal/testproc"
)

// weirWorker runs the command and returns its exit code and last line.
func weirWorker(t *testing.T, args ...string) (int, string) {
	t.Helper()
	var out, errs bytes.Buffer
	env := cli.Env{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Getenv: func(string) string { return "" }}
	code := cli.Main(context.Background(), env, []cli.Command{worker.Command()}, append([]string{"worker"}, args...))
	var messages []string
	for line := range strings.Lines(errs.String()) {
		if strings.HasPrefix(line, "weir worker:") {
			messages = append(messages, strings.TrimSpace(line))
		}
	}
	if all := errs.String(); len(messages) > 1 || code == 1 && strings.Count(all, "\n") != 1 {
		t.Errorf("more than one line: %q", all)
	}
	return code, strings.Join(append(messages, out.String()), "")
}

func TestCommandMistakes(t *testing.T) {
	lib := llamatest.Library(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	dir := t.TempDir()
	noModel := filepath.Join(dir, "picture.gguf")
	if err := os.WriteFile(noModel, []byte("\x89PNG and so on"), 0o600); err != nil {
		t.Fatal(err)
	}
	cut := filepath.Join(dir, "cut.gguf")
	if err := os.WriteFile(cut, []byte("GGUF\x03\x00\x00\x00\xff\xff\xff\xff"), 0o600); err != nil {
		t.Fatal(err)
	}
	strange := filepath.Join(dir, "strange.gguf")
	writeModel(t, strange, "gemma3")
	hub := []string{"--model", "hub-edge", "--cache-dir", dir}
	for _, tt := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"no model", nil, 1, "model is missing"},
		{"unknown flag", []string{"--modle", "x"}, 2, "modle"},
		{"argument", append(hub, "extra"), 2, "extra"},
		{"role", append(hub, "--role", "king"), 1, `"king"`},
		{"runner", append(hub, "--runner", "vllm"), 1, "auto, llama or moe"},
		{"model that the runner does not know", []string{"--model", strange, "--runner", "moe", "--listen", "127.0.0.1:0"}, 1, "use --runner llama"},
		{"port taken", append(hub, "--listen", taken.Addr().String()), 1, "address already in use"},
		{"no such file", []string{"--model", filepath.Join(dir, "nothing.gguf"), "--listen", "127.0.0.1:0", "--lib", lib}, 1, "nothing.gguf"},
		{"no such model", []string{"--model", "nope", "--listen", "127.0.0.1:0", "--lib", lib}, 1, "hub-edge, hub-cloud"},
		{"not a model", []string{"--model", noModel, "--listen", "127.0.0.1:0", "--lib", lib}, 1, "picture.gguf"},
		{"cut model", []string{"--model", cut, "--listen", "127.0.0.1:0", "--lib", lib}, 1, "cut.gguf"},
		{"no library", append(hub, "--listen", "127.0.0.1:0", "--lib", dir), 1, "weir engine install"},
		{"open to all without certificates", append(hub, "--listen", "0.0.0.0:0"), 1, "weir pki issue"},
		{"half of the certificates", append(hub, "--tls-cert", "x"), 1, "all three or none"},
		{"certificate missing", append(hub, "--tls-cert", "x", "--tls-key", "y", "--tls-ca", "z"), 1, "load certificate"},
		{"listen", append(hub, "--listen", "localhost"), 1, "HOST:PORT"},
		{"batch below sequences", append(hub, "--max-seqs", "64", "--max-batch", "8"), 1, "max_batch"},
		{"prefix cache", append(hub, "--prefix-cache", "maybe"), 1, "on or off"},
		{"cost model", append(hub, "--cost-model", noModel, "--listen", "127.0.0.1:0"), 1, "weir worker bench"},
		{"context", append(hub, "--ctx", "100000", "--listen", "127.0.0.1:0", "--lib", lib), 1, "at most 2048 tokens"},
		{"bench without a file to write", append([]string{"bench"}, hub...), 2, "--out FILE"},
		{"number", append(hub, "--threads", "many"), 2, "threads"},
		{"log level", append(hub, "--log-level", "loud"), 1, "loud"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if code, line := weirWorker(t, tt.args...); code != tt.code || !strings.Contains(line, tt.want) {
				t.Errorf("exit %d, %q; want %d and %q", code, line, tt.code, tt.want)
			}
		})
	}
}

// writeModel writes a model file of an architecture without any tensor.
func writeModel(t *testing.T, path, arch string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(gguf.Write(f, []gguf.Entry{{Key: "general.architecture", Value: arch}}, nil), f.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestBench measures this machine for a second, or for longer where it is busy,
// and a worker tells the result.
func TestBench(t *testing.T) {
	lib, dir := llamatest.Library(t), t.TempDir()
	out := filepath.Join(dir, "cost.json")
	code, text := 1, "too few"
	for most := time.Second; code != 0 && strings.Contains(text, "too few") && most < time.Minute; most *= 4 {
		code, text = weirWorker(t, "bench", "--model", "hub-edge", "--cache-dir", dir, "--lib", lib, "--out", out, "--time", most.String(), "--log-level", "error")
	}
	if code != 0 || !strings.Contains(text, "per prompt token") {
		t.Fatalf("exit %d: %s", code, text)
	}
	m, err := cost.Read(out)
	if err != nil || m.Fingerprint == "" {
		t.Fatalf("%+v, %v", m, err)
	}
	m.Fingerprint = runnertest.New(runnertest.Options{}).Info().Fingerprint.String()
	if err := m.Write(out); err != nil {
		t.Fatal(err)
	}
	r := start(t, worker.Config{Role: "mixed", CostModel: out}, toy(runnertest.Options{}))
	told := until(t, r.follow(t), "state", func(state.Message) bool { return true })
	if told.Cost == nil || told.Cost.Fingerprint != m.Fingerprint || told.Cost.Milliseconds(cost.Step{Decodes: 1, Context: 100}) <= 0 {
		t.Errorf("state tells %+v", told.Cost)
	}
}

// TestCostModelOfAnother: a worker does not start with what was measured with
// another model.
func TestCostModelOfAnother(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cost.json")
	m := cost.Model{Fingerprint: "another", Pieces: []cost.Piece{{Fixed: 1}}}
	if err := m.Write(file); err != nil {
		t.Fatal(err)
	}
	err := worker.Run(t.Context(), worker.Options{Config: worker.Config{Role: "mixed", Listen: "127.0.0.1:0", CostModel: file}, Log: logger(t), Load: toy(runnertest.Options{})})
	if err == nil || !strings.Contains(err.Error(), `"another"`) || !strings.Contains(err.Error(), "weir worker bench") {
		t.Errorf("got %v", err)
	}
}

// TestCostModelOfAnotherVersion: an update of the runner does not keep a worker
// from its start; it tells the old model and warns.
func TestCostModelOfAnotherVersion(t *testing.T) {
	file, log := filepath.Join(t.TempDir(), "cost.json"), new(testproc.Log)
	print := runnertest.New(runnertest.Options{}).Info().Fingerprint
	print.Runner = "toy/0"
	m := cost.Model{Fingerprint: print.String(), Pieces: []cost.Piece{{Fixed: 1}}}
	if err := m.Write(file); err != nil {
		t.Fatal(err)
	}
	r := startLogging(t, slog.New(slog.NewTextHandler(log, nil)), worker.Config{Role: "mixed", CostModel: file}, toy(runnertest.Options{}))
	told := until(t, r.follow(t), "state", func(state.Message) bool { return true })
	if told.Cost == nil || told.Cost.Fingerprint != m.Fingerprint || !strings.Contains(log.String(), "another version of the runner") {
		t.Errorf("state tells %+v; %s", told.Cost, log)
	}
}

func TestCommandHelp(t *testing.T) {
	if code, text := weirWorker(t, "--help"); code != 0 || !strings.Contains(text, "--tls-cert") || !strings.Contains(text, "--drain") {
		t.Errorf("exit %d: %s", code, text)
	}
}
