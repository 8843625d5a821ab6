package experts

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirhq/weir/experts/format"
	"github.com/weirhq/weir/internal/cli"
)

// weir runs "weir experts ARGS" and returns its exit code and output.
func weir(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	env := cli.Env{Stdout: &out, Stderr: &errs, Getenv: func(string) string { return "" }}
	code = cli.Main(t.Context(), env, []cli.Command{Command()}, append([]string{"experts"}, args...))
	return code, out.String(), errs.String()
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const (
	loadsA = `{"logical_count": [[0,0,0,0],[90,10,10,10],[10,10,10,90]]}`
	loadsB = `{"logical_count": [[0,0,0,0],[10,90,10,10],[10,10,90,10]]}`
)

func planJSON(t *testing.T, args ...string) map[string]any {
	t.Helper()
	code, out, errs := weir(t, append([]string{"plan", "--json"}, args...)...)
	if code != 0 {
		t.Fatalf("exit %d: %s", code, errs)
	}
	var m map[string]any
	if err := json.Unmarshal([]byte(out), &m); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	return m
}

func TestPlanCommand(t *testing.T) {
	a, b := write(t, "a.json", loadsA), write(t, "b.json", loadsB)
	out := filepath.Join(t.TempDir(), "plan.json")
	m := planJSON(t, "--load", a, "--devices", "2", "--spare", "2", "--out", out)
	for _, name := range []string{"imbalance_before", "imbalance_mean", "imbalance_max", "lower_bound", "moves", "plan_ms"} {
		if _, ok := m[name].(float64); !ok {
			t.Errorf("member %s is %v", name, m[name])
		}
	}
	if m["imbalance_mean"].(float64) > 1.01 || m["moves"].(float64) != 0 {
		t.Errorf("report %v", m)
	}
	p, err := format.ReadPlan(out, 0)
	if err != nil || len(p.Placement.Layers) != 3 || len(p.MoE) != 2 {
		t.Fatalf("plan %+v, %v", p, err)
	}
	m = planJSON(t, "--load", b, "--devices", "2", "--spare", "2", "--from", out, "--moves", "1")
	if m["moves_per_layer_max"].(float64) > 1 || m["imbalance_mean"].(float64) >= m["imbalance_before"].(float64) {
		t.Errorf("one move: %v", m)
	}
	m = planJSON(t, "--load", b, "--slots", "3,3", "--speed", "1,2", "--from", out)
	if m["moves"].(float64) == 0 || m["eplb_global_mean"] != nil {
		t.Errorf("unequal devices: %v", m)
	}
	m = planJSON(t, "--load", b, "--devices", "2", "--spare", "2", "--objective", "activated", "--step-tokens", "4", "--top-k", "1")
	if m["objective"] != "activated" {
		t.Errorf("objective %v", m["objective"])
	}
}

func TestPlanFormats(t *testing.T) {
	a := write(t, "a.json", loadsA)
	for _, kind := range format.Kinds() {
		code, out, errs := weir(t, "plan", "--load", a, "--devices", "2", "--spare", "2", "--format", string(kind), "--out", "-")
		if code != 0 {
			t.Errorf("%s: exit %d: %s", kind, code, errs)
			continue
		}
		if _, err := format.ParsePlan([]byte(out), 2); err != nil {
			t.Errorf("%s cannot be read back: %v\n%s", kind, err, out)
		}
	}
}

// Every mistake gives one line that says what is wrong.
func TestBadInput(t *testing.T) {
	a := write(t, "a.json", loadsA)
	tests := []struct {
		name string
		args []string
		code int
		says string
	}{
		{"no load", []string{"plan", "--devices", "2"}, 2, "--load is missing"},
		{"no devices", []string{"plan", "--load", a}, 2, "--devices or --slots"},
		{"moves without plan", []string{"plan", "--load", a, "--devices", "2", "--moves", "3"}, 2, "--moves needs --from"},
		{"unknown flag", []string{"plan", "--nope"}, 2, "unknown flag"},
		{"unknown format", []string{"plan", "--load", a, "--devices", "2", "--format", "vllm"}, 2, "vllm-ascend"},
		{"does not divide", []string{"plan", "--load", a, "--devices", "3"}, 1, "2 spare slots would"},
		{"more slots than experts", []string{"plan", "--load", a, "--devices", "2", "--spare", "6"}, 1, "5 slots for 4 experts"},
		{"more devices than experts", []string{"plan", "--load", a, "--devices", "5"}, 1, "do not divide over 5"},
		{"huge device count", []string{"plan", "--load", a, "--devices", "99999999"}, 1, "99999999 devices"},
		{"no file", []string{"plan", "--load", "/nonexistent.json", "--devices", "2"}, 1, "no such file"},
		{"NaN", []string{"plan", "--load", write(t, "n.json", `{"logical_count": [[NaN, 1]]}`), "--devices", "1"}, 1, "NaN"},
		{"negative", []string{"plan", "--load", write(t, "n.json", `{"logical_count": [[-1, 1]]}`), "--devices", "1"}, 1, "not negative"},
		{"ragged", []string{"plan", "--load", write(t, "n.json", `{"logical_count": [[1, 1],[1]]}`), "--devices", "1"}, 1, "a row of 1"},
		{"wrong E", []string{"plan", "--load", a, "--devices", "2", "--from", write(t, "p.json", `{"physical_to_logical_map": [[0,1],[0,1],[0,1]]}`)}, 1, "no slot"},
		{"too many E", []string{"plan", "--load", a, "--devices", "1", "--from", write(t, "p.json", `{"physical_to_logical_map": [[0,1,2,3,4],[0,1,2,3,4],[0,1,2,3,4]]}`)}, 1, "expert 4"},
		{"groups that no nodes share", []string{"plan", "--load", a, "--devices", "2", "--groups", "3", "--nodes", "2"}, 2, "a multiple"},
		{"nodes without groups", []string{"plan", "--load", a, "--devices", "2", "--nodes", "2"}, 2, "--groups"},
		{"groups that do not divide", []string{"plan", "--load", a, "--devices", "2", "--groups", "3"}, 1, "groups"},
		{"too large", []string{"plan", "--load", write(t, "n.json", `{"logical_count": [[1e18, 1]]}`), "--devices", "1"}, 1, "2^53"},
		{"an array", []string{"plan", "--load", write(t, "n.json", `[[1, 1]]`), "--devices", "1"}, 1, "not a JSON object"},
		{"malicious pickle", []string{"plan", "--load", "format/testdata/malicious.pt", "--devices", "1"}, 1, `"posix.system" is not allowed`},
		{"show nothing", []string{"show"}, 2, "one file"},
		{"show a picture", []string{"show", write(t, "x.png", "PNG")}, 1, "neither loads nor a plan"},
		{"replay without folder", []string{"replay", "--devices", "2"}, 2, "--loads is missing"},
		{"replay an empty folder", []string{"replay", "--loads", t.TempDir(), "--devices", "2"}, 1, "no load files"},
		{"watch without replicas", []string{"watch", "--devices", "2"}, 2, "--replica is missing"},
		{"watch without hook", []string{"watch", "--devices", "2", "--replica", "http://h=/"}, 2, "--hook"},
		{"watch with a wrong folder", []string{"watch", "--devices", "2", "--audit", "--replica", "http://h=/nonexistent"}, 1, "recorder folder"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			code, out, errs := weir(t, tt.args...)
			if code != tt.code || !strings.Contains(errs, tt.says) || strings.Count(errs, "\n") != 1 || out != "" {
				t.Errorf("exit %d, want %d that says %q\nstdout %q\nstderr %q", code, tt.code, tt.says, out, errs)
			}
		})
	}
}

func TestFailedPlanWritesNothing(t *testing.T) {
	a := write(t, "a.json", loadsA)
	out := write(t, "plan.json", "old")
	if code, _, _ := weir(t, "plan", "--load", a, "--slots", "4,2", "--format", "sglang", "--out", out); code != 1 {
		t.Errorf("exit %d for unequal slots in SGLang's format", code)
	}
	if data, _ := os.ReadFile(out); string(data) != "old" {
		t.Errorf("the file now has %q", data)
	}
}

func TestShowCommand(t *testing.T) {
	a := write(t, "a.json", loadsA)
	out := filepath.Join(t.TempDir(), "plan.json")
	planJSON(t, "--load", a, "--devices", "2", "--spare", "2", "--out", out)
	for _, tt := range []struct {
		args []string
		want []string
	}{
		{[]string{"show", a}, []string{"2 MoE layers of 4 experts", "    1      3.00", "█▁▁▁", "hottest expert over mean: 3.00"}},
		{[]string{"show", out}, []string{"plan of 3 layers", "on 2 devices"}},
		{[]string{"show", out, "--load", a}, []string{"imbalance: 1.0000 on average"}},
	} {
		code, text, errs := weir(t, tt.args...)
		for _, want := range tt.want {
			if code != 0 || !strings.Contains(text, want) {
				t.Errorf("%v: exit %d %s, no %q in\n%s", tt.args, code, errs, want, text)
			}
		}
	}
}

func TestReplayCommand(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"1.json": loadsA, "2.json": loadsB, "README.md": "not loads"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "3.json"), []byte(`{"pairs": []}`), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs := weir(t, "replay", "--loads", dir, "--devices", "2", "--spare", "2", "--repeat", "5", "--top-k", "1", "--resample", "3000", "--json")
	if !strings.Contains(errs, "3.json is left out") {
		t.Errorf("stderr %q does not name the file that is left out", errs)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if code != 0 || len(lines) != 11 {
		t.Fatalf("exit %d, %s\n%s", code, errs, out)
	}
	var s replaySummary
	if err := json.Unmarshal([]byte(lines[10]), &s); err != nil {
		t.Fatal(err)
	}
	if s.Windows != 10 || s.Moves != 1 || s.Transfers == 0 || s.Imbalance >= s.StayingPut {
		t.Errorf("summary %+v", s)
	}
	again, second, _ := weir(t, "replay", "--loads", dir, "--devices", "2", "--spare", "2", "--repeat", "5", "--top-k", "1", "--resample", "3000", "--json")
	if again != 0 || second != out {
		t.Error("the same seed gave another run")
	}
}

func TestHelp(t *testing.T) {
	for _, name := range []string{"plan", "show", "replay", "watch"} {
		code, out, _ := weir(t, name, "--help")
		if code != 0 || !strings.Contains(out, "Usage: weir experts "+name) {
			t.Errorf("%s --help: exit %d, %q", name, code, out)
		}
	}
}
