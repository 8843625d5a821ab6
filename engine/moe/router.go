package moe

import (
	"fmt"
	"log/slog"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/moe/shard"
	"github.com/weirhq/weir/experts/gate"
	"github.com/weirhq/weir/experts/load"
)

// router is LASER-style routing.
type router struct {
	gate     *gate.Router
	params   []gate.Params // by layer
	halfLife float64
	bySeq    []engine.Rerouted
	log      *slog.Logger
}

func newRouter(s shape, o Options, shards int) (*router, error) {
	params := o.Gate
	if len(params) == 1 {
		params = make([]gate.Params, s.layers)
		for l := range params {
			params[l] = o.Gate[0]
		}
	}
	if len(params) != s.layers {
		return nil, fmt.Errorf("%w: parameters of %d layers for %d", gate.ErrSpec, len(params), s.layers)
	}
	g, err := gate.NewRouter(s.gate(), params)
	if err != nil {
		return nil, err
	}
	return &router{gate: g, params: params, halfLife: o.GateHalfLife, bySeq: make([]engine.Rerouted, o.MaxSeqs)}, nil
}

// place tells the router where experts are. Lost shards hold none; an expert
// without a home stays where the placement had it, and its tokens fail.
func (r *router) place(m *shard.Map, shards int) {
	speed := make([]float64, shards)
	for i := range speed {
		speed[i] = 1
	}
	for l := range m.Placement.Layers {
		homes := make([][]int32, m.Placement.Experts)
		for e := range homes {
			for _, h := range m.Homes(l, e) {
				homes[e] = append(homes[e], int32(h.Shard))
			}
			if len(homes[e]) == 0 {
				homes[e] = []int32{0}
			}
		}
		if err := r.gate.Place(l, homes, speed); err != nil {
			r.log.Error("router keeps the old placement", "layer", l, "error", err)
		}
	}
}

// route chooses for one token and counts.
func (r *router) route(rec *load.Recorder, l, seq int, chosen []int32, scores []float32) {
	sel, own, out := r.gate.Route(l, chosen, scores, nil)
	rec.Token(l, own, sel, out.Rigid)
	rec.Shape(l, out.Mass, out.Next)
	s := &r.bySeq[seq]
	s.Choices++
	if out.Changed {
		s.Changed++
		s.Lost += float64(out.Lost)
	}
}

// TakeRerouted implements engine.Rerouter.
func (r *Runner) TakeRerouted(s engine.Seq) engine.Rerouted {
	if r.moe == nil || r.moe.router == nil || r.checkSeq(s) != nil {
		return engine.Rerouted{}
	}
	done := r.moe.router.bySeq[s]
	r.moe.router.bySeq[s] = engine.Rerouted{}
	return done
}
