package cloud

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/weirhq/weir/internal/config"
)

// loadText loads a configuration file as the role and "weir config check" do.
func loadText(t *testing.T, text string) (Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "weir.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var c Config
	l, fs := config.New("cloud", &c), pflag.NewFlagSet("cloud", pflag.ContinueOnError)
	l.Flags(fs)
	if err := fs.Parse([]string{"--config", path}); err != nil {
		t.Fatal(err)
	}
	return c, l.Load(func(string) string { return "" })
}

// The example of docs/operations.md is a configuration with all kinds of models.
func TestDocumentedConfig(t *testing.T) {
	page, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "```yaml\n")
	text, _, _ = strings.Cut(text, "```")
	c, err := loadText(t, text)
	if err != nil {
		t.Fatal(err)
	}
	models, err := c.gatewayModels()
	if err != nil || len(c.Instances) != 4 || models["plain"].Cascade != nil || models["plain"].Pool != "joined" {
		t.Fatalf("%+v: %v", models, err)
	}
	for name, pools := range map[string]string{"either": "large other", "auto": "small large other"} {
		if e := models[name].Cascade; e == nil || strings.Join(e.Pools(), " ") != pools {
			t.Errorf("%s: %+v", name, e)
		}
	}
}

// What the role refuses at its start is refused when the file is read, by the key.
func TestRefusedConfig(t *testing.T) {
	const head, one = "cloud:\n  secrets_dir: x\n  data_dir: x\n", "  instances: [{name: a, url: 'http://h:1', model: big}]\n"
	for text, want := range map[string]string{
		"  instances: [{name: a, url: 'http://h:1', model: big}, {name: a, url: 'http://h:2', model: big}]": "instances: instance a is configured twice",
		"  instances: [{name: a, url: 'not a url', model: big}]":                                            "instances: instance a: url",
		"  instances: [{name: a, url: 'ftp://h', model: big}]":                                              "instances: instance a: url",
		"  instances: [{name: a, url: 'http://', model: big}]":                                              "instances: instance a: url",
		"  instances: [{name: \"a\\nb\", url: 'http://h', model: big}]":                                     "can be printed",
		"  instances: [{name: a, url: 'http://u:s3cret@h:1', model: big}]":                                  "instances[0].url",
		"  instances: [{name: a, url: 'http://u:s3cret%zz@h:1', model: big}]":                               "instances[0].url",
		"  instances: [{name: a, url: 'http://h:1/v1', model: big}]":                                        "instance a: url must be without /v1",
		"  instances: [{name: p, url: 'http://h:1', model: big, role: prefill}]":                            "\"big\" are prefill instances",
		"  otlp_endpoint: http://u:s3cret@h:1":                                                              "otlp_endpoint",
		"  instances: [{name: a, url: 'http://h:1', model: big, role: bogus}]":                              "role \"bogus\"",
		one + "  usage_bytes: -1":                                                                           "usage_bytes: -1",
		one + "  usage_bytes: 1000":                                                                         "usage_bytes: 1000",
		one + "  retention: 1h":                                                                             "retention: 1h",
		one + "  max_attempts: 0":                                                                           "max_attempts: 0",
		one + "  max_inflight: 0":                                                                           "max_inflight: 0",
		one + "  drain: -1s":                                                                                "drain: -1s",
		one + "  log_level: loud":                                                                           "loud",
		one + "  models: {'': {pool: big}}":                                                                 "models: a name is empty",
		one + "  models: {auto: {}}":                                                                        "models.auto: name who answers",
		one + "  models: {auto: {cascade: [big, {any: [big, {any: [big]}]}]}}":                              "of cascade",
		one + "  models: {auto: {cascade: [big, big], policy: {rate: .nan}}}":                               "models.auto: policy: rate: NaN",
		one + "  models: {auto: {cascade: [big, big], policy: {rate: '0.3'}}}":                              "rate: want a number",
		one + "  models: {auto: {cascade: [big, big], policy: {verify: true}}}":                             "verify: want an object",
		one + "  models: {auto: {cascade: [big, big], policy: {verify: {samples: 1.5}}}}":                   "verify.samples: want a whole number",
	} {
		_, err := loadText(t, head+text)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), "Go ") {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if _, err := loadText(t, "cloud:\n  secrets_dir: x\n"+one); err == nil || !strings.Contains(err.Error(), "data_dir") {
		t.Errorf("without data_dir: %v", err)
	}
}

// TestMovesConfig: streams move for all causes unless the operator says otherwise.
func TestMovesConfig(t *testing.T) {
	c := testConfig("http://h")
	c.DataDir, c.LogLevel = "x", "info"
	for value, moves := range map[string]bool{movesAuto: true, movesDrain: false} {
		c.Moves = value
		if err := c.Validate(); err != nil {
			t.Error(err)
		}
		if o := c.pool(nil, nil, nil); (o.Moves != nil) != moves {
			t.Errorf("moves %s: %+v", value, o.Moves)
		}
	}
	c.Moves = "always"
	if c.Validate() == nil {
		t.Error("an unknown value was taken")
	}
}
