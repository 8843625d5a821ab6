package worker

import (
	"errors"
	"fmt"

	"github.com/weirhq/weir/experts/gate"
)

// Experts says how the moe runner keeps a mixture of experts in balance: key
// experts of section worker. What is 0 takes the runner's default.
type Experts struct {
	Fixed  bool    `yaml:"fixed"`  // experts stay where they are
	Shards int     `yaml:"shards"` // memories that hold experts
	Slots  int     `yaml:"slots"`  // experts per layer that fit into a shard
	Window int64   `yaml:"window"` // tokens after which the loop decides
	Start  float64 `yaml:"start"`  // imbalance above which a window counts as skewed
	Moves  int     `yaml:"moves"`  // transfers per layer and round
	// Routing turns LASER-style routing on: one entry for all layers or one for
	// each. It changes what the model answers.
	Routing []Routing `yaml:"routing"`
}

// Routing is one layer's parameters: see gate.Params.
type Routing struct {
	EpsHigh float32 `yaml:"eps_high"`
	Tau     float32 `yaml:"tau"`
	Pool    int     `yaml:"pool"`
}

func (e *Experts) validate() error {
	if e.Shards < 0 || e.Slots < 0 || e.Window < 0 || e.Moves < 0 || e.Start < 0 {
		return errors.New("experts: shards, slots, window, start and moves must not be negative")
	}
	if e.Start != 0 && !(e.Start > 1) {
		return fmt.Errorf("experts.start: %v is not above 1, which is perfect balance", e.Start)
	}
	return nil
}

// gate is the routing for the runner, which checks it against the model.
func (e *Experts) gate() []gate.Params {
	var out []gate.Params
	for _, r := range e.Routing {
		out = append(out, gate.Params(r))
	}
	return out
}
