package cloud

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/weirhq/weir/cloud/route"
)

func cascadeConfig(m Model) Config {
	return Config{Listen: "127.0.0.1:1", TLSListen: "127.0.0.1:2", OpsListen: "127.0.0.1:3", SecretsDir: "x", DataDir: "x", LogLevel: "info", FirstByteTimeout: 1, StallTimeout: 1, AnswerTimeout: 1,
		ProbeInterval: 1, MaxInflight: 1, MaxAttempts: 1,
		Instances: []Instance{{Name: "s", URL: "http://127.0.0.1:4", Role: route.Mixed, Model: "small"}, {Name: "m", URL: "http://127.0.0.1:6", Role: route.Mixed, Model: "mid"}, {Name: "l", URL: "http://127.0.0.1:5", Role: route.Mixed, Model: "large"}},
		Models:    map[string]Model{"auto": m}}
}

// A model may be a cascade over two pools; what cannot be one is refused at the
// start, with the reason.
func TestCascadeEntries(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "calibration.json")
	if err := os.WriteFile(bad, []byte(`{"version":1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	good := filepath.Join(t.TempDir(), "good.json")
	if err := os.WriteFile(good, []byte(`{"version":1,"model":"mid","fingerprint":"fp","label_kind":"truth","samples":9,"bias":0,"terms":[{"feature":"product","weight":1}],"edge_accuracy":0.8,"cloud_accuracy":0.95,"threshold":0.5,"quantiles":[0,0.1,0.2,0.3,0.4,0.5,0.55,0.6,0.65,0.7,0.75,0.8,0.82,0.84,0.86,0.88,0.9,0.92,0.94,0.96,1]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	pair, three, worth := []Pools{{"small"}, {"large"}}, []Pools{{"small"}, {"mid"}, {"large"}}, map[string]any{"value": map[string]any{"right_nano": 1000}}
	for _, tt := range []struct {
		m   Model
		why string
	}{
		{Model{Cascade: pair}, ""},
		{Model{Cascade: pair, Policy: map[string]any{"name": "third", "rate": .3}}, ""},
		{Model{Cascade: pair, Pool: "large"}, "keep one"},
		{Model{Pool: "large", Context: -1}, "context must not be negative"},
		{Model{Cascade: []Pools{{"small"}}}, "two to 4 pools"},
		{Model{Cascade: []Pools{{"small"}, {"small"}}}, "names of their own"},
		{Model{Cascade: []Pools{{"tiny"}, {"large"}}}, `"tiny"`},
		{Model{Cascade: pair, Policy: map[string]any{"rat": .3}}, "rat"},
		{Model{Cascade: pair, Policy: map[string]any{"budget": map[string]any{"per_day_nano": 1000, "right_nano": 10}, "window": map[string]any{"tokens": 8}, "handoff": "append"}}, ""},
		{Model{Cascade: pair, Policy: map[string]any{"handoff": "continue"}, Continues: true}, ""},
		{Model{Cascade: pair, Policy: map[string]any{"handoff": "continue"}}, "continues: true"},
		{Model{Cascade: pair, Policy: map[string]any{"risk": map[string]any{"alpha": .1, "delta": .1, "max_rate": .5}}}, "no labels"},
		{Model{Cascade: pair, Policy: map[string]any{"sticky": true}}, "sticky has no effect"},
		{Model{Cascade: pair, Policy: map[string]any{"privacy": "local-only"}}, "privacy has no effect"},
		{Model{Cascade: pair, Calibration: bad}, "calibration"},
		{Model{Cascade: pair, Calibrations: map[string]string{"small": bad}}, "calibration of small"},
		{Model{Cascade: pair, Calibrations: map[string]string{"large": bad}}, "judges no answers"},
		{Model{Cascade: pair, Calibration: bad, Calibrations: map[string]string{"small": bad}}, "keep one"},
		{Model{Cascade: pair, Quality: map[string]float64{"small": .6, "large": .95}}, ""},
		{Model{Cascade: pair, Quality: map[string]float64{"tiny": .6}}, "no such pool"},
		{Model{Cascade: pair, Quality: map[string]float64{"small": 6}}, "want 0 to 1"},
		{Model{Cascade: three, Policy: worth}, "calibration of mid"},
		{Model{Cascade: three, Policy: worth, Calibrations: map[string]string{"mid": good}}, ""},
		{Model{Cascade: three, Policy: map[string]any{"rate": .3}, Calibrations: map[string]string{"mid": good}}, "set value or budget"},
		{Model{Cascade: three, Calibrations: map[string]string{"mid": good}}, "set value or budget"},
		{Model{Cascade: []Pools{{"small"}, {"mid"}, {"large"}, {"s"}, {"l"}}, Policy: worth}, "two to 4 pools"},
		{Model{Pool: "large", Policy: map[string]any{"rate": .3}}, "belong to a cascade"},
		{Model{Cascade: []Pools{{"small"}, {"large", "mid"}}}, ""},
		{Model{Cascade: []Pools{{"small"}, {"large", "mid"}}, Policy: map[string]any{"shadow": 0}}, ""},
		{Model{Cascade: []Pools{{"small"}, {"large", "mid"}}, Policy: map[string]any{"shadow": .1}}, "no labels"},
		{Model{Cascade: pair, Policy: map[string]any{"shadow": 0}}, "no labels"},
		{Model{Cascade: []Pools{{"small"}, {"large", "large"}}}, "names of their own"},
		{Model{Cascade: []Pools{{"small"}, {"large", "small"}}}, "names of their own"},
		{Model{Cascade: []Pools{{"small"}, {"large", "huge"}}}, `"huge"`},
		{Model{Cascade: []Pools{{"small", "mid"}, {"large"}}}, "the last place only"},
		{Model{Cascade: []Pools{{"small"}, {"large", "mid", "s", "l"}}}, "two to 4 pools"},
		{Model{Any: []string{"large"}}, "two or more pools"},
		{Model{Any: []string{"large", "mid"}, Pool: "small"}, "keep one"},
		{Model{Any: []string{"large", "mid"}, Cascade: pair}, "keep one"},
		{Model{Any: []string{"large", "mid"}, Calibration: good}, "there is none"},
		{Model{Any: []string{"large", "mid"}, Policy: map[string]any{"rate": .3}}, "nothing is judged"},
		{Model{Any: []string{"large", "mid"}, Policy: map[string]any{"budget": map[string]any{"per_day_nano": 1000, "right_nano": 10}}}, "nothing is judged"},
		{Model{Any: []string{"large", "huge"}}, `"huge"`},
	} {
		c := cascadeConfig(tt.m)
		err := c.Validate()
		if (err == nil) != (tt.why == "") || err != nil && !strings.Contains(err.Error(), tt.why) {
			t.Errorf("%+v: %v", tt.m, err)
			continue
		}
		if err != nil {
			continue
		}
		models, err := c.gatewayModels()
		if err != nil {
			t.Fatal(err)
		}
		if g := models["auto"]; g.Pool != "large" || g.Named || g.Cascade == nil || g.Cascade.Pools()[0] != "small" {
			t.Errorf("%+v gives %+v", tt.m, g)
		}
	}
}

// Equals alone are asked without a judgement, and what a file says of them is what
// is printed.
func TestEqualsInYAML(t *testing.T) {
	for text, want := range map[string]string{
		"any: [large, mid]":                                              "large mid",
		"cascade: [small, {any: [large, mid]}]":                          "small large mid",
		"cascade: [small, large]":                                        "small large",
		"any: [large, mid]\npolicy: {value: {right_nano: 5}, shadow: 0}": "large mid",
	} {
		var m Model
		if err := yaml.Unmarshal([]byte(text), &m); err != nil {
			t.Fatal(err)
		}
		if err := m.validate(); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		printed, err := yaml.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		var again Model
		if err := yaml.Unmarshal(printed, &again); err != nil || strings.Join(again.pools(), " ") != want || len(again.equals()) != len(m.equals()) {
			t.Errorf("%s is %v of %s: %v", text, again.pools(), printed, err)
		}
	}
	for _, text := range []string{"cascade: [small, {any: [large]}]", "cascade: [small, {any: large}]", "cascade: [small, {some: [large, mid]}]", "cascade: [small, {any: [large, mid], x: 1}]", "cascade: [small, [large, mid]]"} {
		var m Model
		if err := yaml.Unmarshal([]byte(text), &m); err == nil {
			t.Errorf("%s is %+v", text, m)
		}
	}
}
