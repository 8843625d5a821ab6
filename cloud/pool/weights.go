package pool

import (
	"slices"

	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/engine"
)

// splitWarning is what people are told of a pool whose instances do not all have
// the same weights. They are different models under one name: each answers, but
// none can go on with another's answer.
const splitWarning = "the pool's instances have several weights: no stream goes on from one to another of other weights, and answers differ"

// bears takes what an instance says of its model.
func (in *instance) bears(f engine.Fingerprint) {
	in.prints, in.weights = "", f.Weights
	if f != (engine.Fingerprint{}) {
		in.prints = f.String()
	}
}

// weigh looks which pools have instances of several weights, and warns once of
// each. A change of a model that replaces one instance after the other is such a
// time.
func (p *Pool) weigh() {
	p.mu.Lock()
	defer p.mu.Unlock()
	split := map[string]bool{}
	for i, in := range p.inst {
		split[in.Model] = split[in.Model] || slices.ContainsFunc(p.inst[:i], func(other *instance) bool {
			return other.Model == in.Model && route.WeightsDiffer(in.weights, other.weights)
		})
	}
	for model, is := range split {
		switch {
		case is && !p.split[model]:
			p.opts.Log.Warn(splitWarning, "model", model)
		case !is && p.split[model]:
			p.opts.Log.Info("the pool's instances have the same weights again", "model", model)
		}
	}
	p.split = split
}
