package moe

import (
	"fmt"
	"math"
	"sync"

	"github.com/weirhq/weir/engine/moe/kernel"
	"github.com/weirhq/weir/engine/moe/shard"
	"github.com/weirhq/weir/experts/gate"
	"github.com/weirhq/weir/experts/load"
)

// mixture is what a mixture of experts has beside a dense model: the gate, the
// shards, what was asked of them, and what balances them.
type mixture struct {
	shape  shape
	set    *shard.Set
	watch  func(layer int, scores []float32) // nil: nobody does
	gate   *gate.Gate
	router *router // nil: as the model chooses
	now    *shard.Map

	scores, logits []float32 // [row][padded experts]
	chosen         []int32   // [row][topK]
	weight         []float32
	out            []float32 // results, [row][topK][width]

	jobs    jobs
	sent    [][]uint64 // tokens sent to each shard, by layer, lately
	scratch []*shard.Scratch

	mu      sync.Mutex // guards what follows; held by a step
	load    map[load.Phase]*load.Recorder
	total   [][]uint64 // tokens that each shard has computed, by layer
	balance *balancer
}

// mixture sets up the experts.
func (r *Runner) mixture(o Options, f *file) error {
	s := f.shape
	p, err := o.placement(s)
	if err != nil {
		return err
	}
	m := &mixture{shape: s, watch: o.Scores, load: map[load.Phase]*load.Recorder{}}
	if m.set, err = shard.New(shard.Options{Experts: f.experts, Placement: p, Copy: o.Copy, Reload: reload(o.Path, s)}); err != nil {
		return err
	}
	if m.gate, err = gate.New(s.gate()); err != nil {
		return err
	}
	for _, phase := range []load.Phase{load.Prefill, load.Decode} {
		m.load[phase] = load.NewRecorder(phase, s.layers, s.experts, s.topK)
	}
	n, wide := o.MaxBatch, (s.experts+kernel.Lanes-1)/kernel.Lanes*kernel.Lanes
	m.scores, m.logits = make([]float32, n*wide), make([]float32, n*wide)
	m.chosen, m.weight = make([]int32, n*s.topK), make([]float32, n*s.topK)
	m.out = make([]float32, n*s.topK*s.width)
	m.jobs = newJobs(n*s.topK, m.set.Shards()*s.experts)
	for range s.layers {
		m.sent = append(m.sent, make([]uint64, m.set.Shards()))
		m.total = append(m.total, make([]uint64, m.set.Shards()))
	}
	for range m.set.Shards() {
		m.scratch = append(m.scratch, shard.NewScratch(s.width, s.inner))
	}
	if o.Gate != nil {
		if m.router, err = newRouter(s, o, m.set.Shards()); err != nil {
			return err
		}
	}
	r.moe = m
	if o.Balance != nil {
		m.balance = newBalancer(*o.Balance, m, r.log)
	}
	if m.router != nil {
		m.router.log = r.log
	}
	return nil
}

// begin takes the map that a whole step is computed under.
func (m *mixture) begin() {
	m.mu.Lock()
	now := m.set.Map()
	if now == m.now {
		return
	}
	m.now = now
	clear(m.jobs.expert) // or old generations' weights would stay in memory
	for _, row := range m.sent {
		clear(row)
	}
	if m.router != nil {
		m.router.place(now, m.set.Shards())
	}
}

// end closes a step whose rows were prefill or not.
func (m *mixture) end(prefill []bool) {
	n := 0
	for _, p := range prefill {
		if p {
			n++
		}
	}
	m.load[load.Prefill].Tokens(n)
	m.load[load.Decode].Tokens(len(prefill) - n)
	if m.router != nil {
		m.router.gate.Decay(float64(len(prefill)), m.router.halfLife)
	}
	if m.balance != nil {
		m.balance.notice(m.load)
	}
	m.mu.Unlock()
}

// mix adds a layer's experts to the residual stream.
func (r *Runner) mix(b *layer, l, n int) error {
	m, w, s := r.moe, r.space, &r.shape
	r.mul(&b.router, m.logits, w.in, w.all[:n])
	m.jobs.reset()
	for i := range n {
		m.choose(l, i, int(w.seq[i]), w.prefill[i])
		if err := m.assign(l, i); err != nil {
			return err
		}
	}
	m.jobs.sort()
	m.run(r.pool, w.in, n)
	for i := range n {
		x := w.x[i*s.width : (i+1)*s.width]
		for k := range s.topK {
			at := i*s.topK + k
			kernel.AddScaled(x, m.out[at*s.width:(at+1)*s.width], m.weight[at])
		}
	}
	return nil
}

// minusInf is the logit of an expert that is not there.
var minusInf = float32(math.Inf(-1))

// choose finds the experts of row i and their weights, and counts them.
func (m *mixture) choose(l, i, seq int, prefill bool) {
	wide := len(m.gateRow(m.logits, i))
	scores, logits := m.gateRow(m.scores, i), m.gateRow(m.logits, i)
	copy(scores, logits)
	for e := m.shape.experts; e < wide; e++ {
		scores[e] = minusInf
	}
	sum := kernel.ExpSub(scores, kernel.Max(scores))
	scores = scores[:m.shape.experts]
	for e := range scores {
		scores[e] /= sum
	}
	if m.watch != nil {
		m.watch(l, scores)
	}
	k := m.shape.topK
	chosen := m.chosen[i*k : i*k : (i+1)*k]
	rec := m.load[load.Decode]
	if prefill {
		rec = m.load[load.Prefill]
	}
	if m.router != nil {
		m.router.route(rec, l, seq, chosen, scores)
	} else {
		own := m.gate.TopK(chosen, scores, nil)
		rec.Token(l, own, own, 1)
		rec.Shape(l, massOf(scores, own), nextOf(scores, own))
	}
	m.gate.Weights(m.weight[i*k:(i+1)*k], scores, m.chosen[i*k:(i+1)*k])
}

func (m *mixture) gateRow(x []float32, i int) []float32 {
	wide := (m.shape.experts + kernel.Lanes - 1) / kernel.Lanes * kernel.Lanes
	return x[i*wide : (i+1)*wide]
}

// massOf is the share of all scores that sel carries; scores sum to 1.
func massOf(scores []float32, sel []int32) float32 {
	var sum float32
	for _, e := range sel {
		sum += scores[e]
	}
	return sum
}

// nextOf is the best score that sel does not hold over the least that it does.
func nextOf(scores []float32, sel []int32) float32 {
	least := scores[sel[len(sel)-1]]
	var next float32
	for e, x := range scores {
		if x > next && (x < least || !holds(sel, int32(e))) {
			next = x
		}
	}
	if !(least > 0) {
		return 0
	}
	return min(1, next/least)
}

func holds(sel []int32, e int32) bool {
	for _, x := range sel {
		if x == e {
			return true
		}
	}
	return false
}

// assign picks a shard for each of row i's experts: of those that hold it, the
// one that was sent least. Which one does not change the result.
func (m *mixture) assign(l, i int) error {
	k := m.shape.topK
	for at := i * k; at < (i+1)*k; at++ {
		e := int(m.chosen[at])
		best := -1
		homes := m.now.Homes(l, e)
		for h := range homes {
			if m.set.Lost(homes[h].Shard) {
				continue
			}
			if best < 0 || m.sent[l][homes[h].Shard] < m.sent[l][homes[best].Shard] {
				best = h
			}
		}
		if best < 0 {
			return fmt.Errorf("layer %d: expert %d has no copy left: %w", l, e, shard.ErrLost)
		}
		to := homes[best].Shard
		m.sent[l][to]++
		m.total[l][to]++
		m.jobs.add(to*m.shape.experts+e, homes[best].Expert, int32(i))
	}
	return nil
}

// run computes the jobs, each shard on one thread at a time.
func (m *mixture) run(p *pool, x *kernel.Input, n int) {
	m.jobs.x = x
	if p.threads() > 1 && 3*n*m.shape.topK*m.shape.width*m.shape.inner >= worthSharing {
		p.run(m, m.set.Shards())
		return
	}
	for s := range m.set.Shards() {
		m.do(0, s)
	}
}

// do is one shard's part of a layer.
func (m *mixture) do(_, s int) {
	for e := range m.shape.experts {
		g := s*m.shape.experts + e
		rows, to := m.jobs.of(g)
		if len(rows) > 0 {
			m.jobs.expert[g].Forward(m.out, to, m.jobs.x, rows, m.scratch[s])
		}
	}
}
