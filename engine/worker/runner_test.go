package worker

import (
	"errors"
	"strings"
	"testing"

	"github.com/weirhq/weir/engine/moe"
	"github.com/weirhq/weir/experts/load"
	"github.com/weirhq/weir/internal/config"
)

func TestChoose(t *testing.T) {
	unfit := errors.New(`architecture "gemma3"`)
	for _, tt := range []struct {
		asked   string
		experts int
		unfit   error
		fast    bool
		want    string // "" for an error
	}{
		{"llama", 0, unfit, true, "llama"},
		{"llama", 16, nil, true, "llama"},
		{"moe", 16, nil, false, "moe"},
		{"moe", 0, nil, false, "moe"},
		{"moe", 0, unfit, true, ""},
		{"auto", 16, nil, true, "moe"},
		{"auto", 16, nil, false, "llama"}, // plain kernels are slow
		{"auto", 0, nil, true, "llama"},   // no experts to balance
		{"auto", 0, unfit, true, "llama"},
	} {
		got, err := choose(tt.asked, tt.experts, tt.unfit, tt.fast)
		if got != tt.want || (err != nil) != (tt.want == "") {
			t.Errorf("choose(%+v) = %q, %v", tt, got, err)
		}
		if err != nil && !errors.Is(err, unfit) {
			t.Errorf("the error %v hides its cause", err)
		}
	}
}

func TestExpertsConfig(t *testing.T) {
	for _, bad := range []Experts{{Shards: -1}, {Slots: -1}, {Window: -1}, {Moves: -1}, {Start: -1}, {Start: 1}, {Start: 0.5}} {
		if bad.validate() == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
	if (&Experts{Fixed: true}).balance("mixed") != nil {
		t.Error("fixed experts are balanced")
	}
	b := (&Experts{Window: 5000, Start: 1.2, Moves: 3}).balance("decode")
	if b.Window != 5000 || b.Config.Start != 1.2 || b.Config.Moves != 3 || b.Phase != load.Decode {
		t.Errorf("balance is %+v", b)
	}
	if got, def := (&Experts{}).balance("mixed"), moe.DefaultBalance(); *got != def {
		t.Errorf("balance is %+v, want the default %+v", got, def)
	}
	e := Experts{Routing: []Routing{{EpsHigh: 0.8, Tau: 0.6, Pool: 6}}}
	if e.balance("mixed").Config.Routed != 1 {
		t.Error("with routing, placement should leave flexible load to it")
	}
	if g := e.gate(); len(g) != 1 || g[0].Tau != 0.6 || (&Experts{}).gate() != nil {
		t.Errorf("gate is %+v", g)
	}
}

// TestExpertsFile reads key experts from a configuration file.
func TestExpertsFile(t *testing.T) {
	for text, want := range map[string]string{
		"experts: {shards: 4, slots: 6, window: 5000, start: 1.2, moves: 4, routing: [{eps_high: 0.4, tau: 0.7, pool: 4}]}": "",
		"experts: {fixed: true}":               "",
		"experts: {shard: 4}":                  "shard",
		"experts: {shards: many}":              "many",
		"experts: {shards: -1}":                "negative",
		"experts: {start: 0.9}":                "above 1",
		"experts: {routing: {eps_high: 0.4}}":  "map",
		"experts: {routing: [{epshigh: 0.4}]}": "epshigh",
	} {
		c := Config{Model: "hub-cloud", Role: "mixed", Runner: "auto", Listen: "127.0.0.1:0", MaxSeqs: 1, MaxBatch: 1}
		err := config.Decode([]byte("worker: {"+text+"}"), "worker", &c)
		if err == nil {
			err = c.Experts.validate()
		}
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
