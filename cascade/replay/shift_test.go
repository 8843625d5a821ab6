package replay

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/control"
	"github.com/weirhq/weir/cascade/learn"
	settings "github.com/weirhq/weir/cascade/policy"
)

// shiftNode decides and learns as an edge node does with a risk target of 5 %:
// labels of all escalated answers and of a fifth of the kept ones, a new bound
// every 50 labels, a frozen one while an alarm is looked into.
type shiftNode struct {
	table  *learn.Table
	ctl    *settings.Controller
	rng    *rand.Rand
	labels int
	alarms int
}

const shiftCell, shiftShare = "cell", .2

func newShiftNode(seed uint64) *shiftNode {
	s := settings.Settings{Risk: &settings.Risk{Alpha: .05, Delta: .1, MaxRate: 1}}
	return &shiftNode{table: learn.NewTable(learn.DefaultOptions(), "", cascade.FeatureProduct),
		ctl: settings.NewController(s, cascade.Calibration{CloudAccuracy: 1}), rng: rand.New(rand.NewPCG(seed, 11))}
}

func p1Feature(r *Record) []float64 { return []float64{cascade.Phi(math.Log(r.Signals[SignalP1]))} }

// judge is a decision by a calibration and a policy, and its loss.
func judge(pEdge float64, p cascade.Policy, r *Record) (v cascade.Verdict, loss float64) {
	request, node := cascade.Request{}, nodeAt(nil, 0)
	v = cascade.Judge(&request, pEdge, true, false, &p, &node)
	if !v.Escalate {
		loss = math.Max(0, r.Cloud-r.Edge)
	}
	return v, loss
}

func (n *shiftNode) serve(r *Record) (loss float64) {
	x := p1Feature(r)
	was := n.table.Alarmed(shiftCell)
	n.heed(n.table.Pass(shiftCell, x))
	if was && !n.table.Alarmed(shiftCell) {
		n.ctl.Settled()
	}
	pEdge, _ := n.table.Predict(shiftCell, x)
	v, loss := judge(pEdge, n.ctl.Policy(settings.Costs{}), r)
	n.ctl.Observe(settings.Decided{Verdict: v}, time.Unix(0, 0))
	if v.Escalate || n.rng.Float64() < shiftShare {
		n.label(r, x, v.Escalate, loss)
	}
	return loss
}

func (n *shiftNode) label(r *Record, x []float64, escalated bool, loss float64) {
	o := learn.Outcome{Cell: shiftCell, X: x, Edge: r.Edge, Cloud: r.Cloud, CloudKnown: true, Propensity: learn.Propensity(escalated, shiftShare)}
	if !escalated {
		n.ctl.Label(loss, o.Propensity)
	}
	n.heed(n.table.Observe(o))
	if n.labels++; n.labels%50 != 0 {
		return
	}
	if items := n.table.RiskItems(shiftCell); len(items) >= control.MinRiskItems {
		_, _ = n.ctl.Calibrate(items) // where it cannot be kept the last bound stands
	}
}

func (n *shiftNode) heed(d learn.Drift) {
	if d != "" {
		n.alarms++
		n.ctl.Drifted()
	}
}

// A task that turns hard breaks a fixed bound; a node that learns raises an
// alarm and keeps the risk of the next 1,000 requests under 6 %.
func TestRiskUnderShift(t *testing.T) {
	for _, c := range []struct{ file, from, to string }{
		{qwen, "mmlu_10k", "hellaswag_10k"}, {qwen, "halu_summarization", "hellaswag_10k"},
		{llama, "halu_dialogue", "mmlu_10k"}, {llama, "halu_summarization", "hellaswag_10k"},
	} {
		tasks := map[string][]*Record{}
		for i := range openShared(t, c.file).Records {
			r := &opened[c.file].Records[i]
			tasks[r.Cell] = append(tasks[r.Cell], r)
		}
		const runs, n = 4, 1000
		fixed, learning, alarmed := 0., 0., 0
		for seed := range uint64(runs) {
			node := newShiftNode(seed)
			draw := func(task string) *Record { return tasks[task][node.rng.IntN(len(tasks[task]))] }
			for range 3 * n {
				node.serve(draw(c.from))
			}
			before, bound := node.table.View(shiftCell).Calibration, node.ctl.Policy(settings.Costs{})
			line := cascade.Logistic{Bias: before.Bias, W: []float64{before.Terms[0].Weight}}
			node.alarms = 0
			for range n {
				r := draw(c.to)
				_, loss := judge(line.P(p1Feature(r)), bound, r)
				fixed += loss / n / runs
				learning += node.serve(draw(c.to)) / n / runs
			}
			alarmed += b2i(node.alarms > 0)
		}
		t.Logf("%s to %s: risk %.3f with a fixed bound, %.3f learning, alarm in %d of %d runs", c.from, c.to, fixed, learning, alarmed, runs)
		if fixed < .06 || learning > .06 || alarmed == 0 {
			t.Errorf("%s to %s: want a fixed bound to fail, and at most .06 and an alarm where the node learns", c.from, c.to)
		}
	}
}
