package experts

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"

	"github.com/weirhq/weir/experts/format"
	"github.com/weirhq/weir/experts/load"
	"github.com/weirhq/weir/experts/plan"
	"github.com/weirhq/weir/internal/cli"
)

const planUsage = "--load FILE --devices N [--spare N] [flags]"

func planCommand() cli.Command {
	return cli.Command{Name: "plan", Short: "place experts on devices from recorded loads", Usage: planUsage, Run: runPlan}
}

// planFlags are the flags of "weir experts plan".
type planFlags struct {
	fleetFlags
	load, from, objective, format, out   string
	moves, fromDevices, stepTokens, topK int
	work, hidden, groups, nodes          int
	target                               float64
	timeout                              time.Duration
	json                                 bool
}

func parsePlanFlags(env cli.Env, args []string) (planFlags, error) {
	var f planFlags
	fs := pflag.NewFlagSet("experts plan", pflag.ContinueOnError)
	fs.StringVar(&f.load, "load", "", "loads: SGLang JSON or recorder .pt, TensorRT-LLM folder, Weir window")
	fs.IntVar(&f.devices, "devices", 0, "number of equal devices")
	fs.IntVar(&f.spare, "spare", 0, "slots beyond one per expert, over all devices")
	fs.StringVar(&f.slots, "slots", "", "slots of each device, e.g. 6,6,4, instead of --devices and --spare")
	fs.StringVar(&f.speed, "speed", "", "relative speed of each device, e.g. 1,1,0.5")
	fs.StringVar(&f.from, "from", "", "plan in force, in any format")
	fs.IntVar(&f.fromDevices, "from-devices", 0, "devices of --from where its format does not say (default: as now)")
	fs.IntVar(&f.moves, "moves", -1, "transfers per layer that --from may be changed by; -1 for any number")
	fs.Float64Var(&f.target, "target", 0, "imbalance that is good enough, e.g. 1.05: fewer transfers")
	fs.StringVar(&f.objective, "objective", "tokens", "tokens, or activated for memory-bound decode")
	fs.IntVar(&f.stepTokens, "step-tokens", 64, "tokens per step, for --objective activated")
	fs.IntVar(&f.topK, "top-k", 0, "experts per token, for --objective activated (default: what the file says, else 8)")
	fs.StringVar(&f.format, "format", "weir", "format of --out: weir, sglang, trtllm or vllm-ascend")
	fs.StringVar(&f.out, "out", "", "file for the plan, - for standard output")
	fs.IntVar(&f.hidden, "hidden-layers", 0, "hidden layers of the model, where the loads leave some out (sglang)")
	fs.IntVar(&f.groups, "groups", 0, "expert groups of the model: also report hierarchical EPLB")
	fs.IntVar(&f.nodes, "nodes", 1, "nodes of the devices, with --groups")
	fs.IntVar(&f.work, "work", 0, "search effort in evaluated changes, 0 for the default")
	fs.DurationVar(&f.timeout, "timeout", 0, "give up after this long and keep --from")
	fs.BoolVar(&f.json, "json", false, "report as JSON")
	if err := cli.ParseFlags(env, fs, planUsage, args); err != nil {
		return f, err
	}
	switch {
	case fs.NArg() > 0:
		return f, cli.Usagef("unexpected argument %q", fs.Arg(0))
	case f.load == "":
		return f, cli.Usagef("--load is missing")
	case f.objective != "tokens" && f.objective != "activated":
		return f, cli.Usagef("--objective is tokens or activated, not %q", f.objective)
	case fs.Changed("moves") && f.moves >= 0 && f.from == "":
		return f, cli.Usagef("--moves needs --from")
	case f.moves < -1 || f.stepTokens < 1 || f.topK < 0 || f.work < 0 || f.hidden < 0 || f.timeout < 0 || f.groups < 0 || f.nodes < 1 || f.fromDevices < 0:
		return f, cli.Usagef("a number is negative or zero where it must not be")
	case f.nodes > 1 && (f.groups == 0 || f.groups%f.nodes != 0):
		return f, cli.Usagef("--nodes %d needs --groups, a multiple of it", f.nodes)
	case f.target != 0 && !(f.target >= 1):
		return f, cli.Usagef("--target is an imbalance of at least 1")
	case f.json && f.out == "-":
		return f, cli.Usagef("--json and --out - both want standard output")
	}
	for _, k := range format.Kinds() {
		if string(k) == f.format {
			return f, nil
		}
	}
	return f, cli.Usagef("--format is one of %v, not %q", format.Kinds(), f.format)
}

func runPlan(_ context.Context, env cli.Env, args []string) error {
	f, err := parsePlanFlags(env, args)
	if err != nil {
		return err
	}
	loads, err := format.ReadLoads(f.load)
	if err != nil {
		return err
	}
	problem, err := f.problem(loads)
	if err != nil {
		return err
	}
	start := time.Now()
	if f.timeout > 0 {
		problem.Stop = func() bool { return time.Since(start) > f.timeout }
	}
	result, err := plan.Solve(problem)
	took := time.Since(start)
	if err != nil {
		return err
	}
	rep, err := f.report(loads, problem, result, took)
	if err != nil {
		return err
	}
	if f.out != "" {
		p := format.Plan{Placement: result.Placement, Layers: loads.Layers, MoE: result.MoE, Hidden: f.hidden}
		if err := writePlan(env, f, p); err != nil {
			return err
		}
	}
	if f.json {
		return writeReport(env.Stdout, rep)
	}
	if f.out != "-" {
		rep.print(env.Stdout)
	}
	return nil
}

// problem turns flags and loads into what the planner takes.
func (f planFlags) problem(loads format.Loads) (plan.Problem, error) {
	fleet, err := f.fleet(loads.Counts.Experts())
	if err != nil {
		return plan.Problem{}, err
	}
	p := plan.Problem{Loads: loads.Counts, Fleet: fleet, Moves: f.moves, Target: f.target, Work: f.work}
	if f.objective == "activated" {
		p.Objective, p.StepTokens, p.TopK = plan.Activated, f.stepTokens, f.topK
		if p.TopK == 0 {
			p.TopK = loads.TopK
		}
		if p.TopK == 0 {
			p.TopK = 8
		}
	}
	if f.from == "" {
		return p, nil
	}
	devices := f.fromDevices
	if devices == 0 {
		devices = fleet.Devices()
	}
	old, err := format.ReadPlan(f.from, devices)
	if err != nil {
		return p, err
	}
	rows, err := old.Rows(loads)
	if err != nil {
		return p, fmt.Errorf("%s: %w", filepath.Base(f.from), err)
	}
	p.Old = &rows
	return p, nil
}

// writePlan writes the plan whole or not at all.
func writePlan(env cli.Env, f planFlags, p format.Plan) error {
	var b bytes.Buffer
	if err := format.WritePlan(&b, format.Kind(f.format), p); err != nil {
		return err
	}
	if f.out == "-" {
		_, err := env.Stdout.Write(b.Bytes())
		return err
	}
	return format.Replace(f.out, b.Bytes())
}

// planReport is the JSON of "weir experts plan --json". Imbalances are max/mean
// device load, in terms of the objective; means are over MoE layers.
type planReport struct {
	Source        string        `json:"source"`
	Objective     string        `json:"objective"`
	Experts       int           `json:"experts"`
	Devices       int           `json:"devices"`
	Slots         int           `json:"slots"`
	Before        float64       `json:"imbalance_before"`
	Mean          float64       `json:"imbalance_mean"`
	Max           float64       `json:"imbalance_max"`
	MaxLayer      int           `json:"imbalance_max_layer"`
	Bound         float64       `json:"lower_bound"`
	Gap           float64       `json:"gap"`
	FreeSplit     float64       `json:"free_split_mean"`
	Moves         int           `json:"moves"`
	MovesPerLayer int           `json:"moves_per_layer_max"`
	PlanMs        float64       `json:"plan_ms"`
	Expired       bool          `json:"expired"`
	EPLBGlobal    float64       `json:"eplb_global_mean,omitempty"`
	EPLBHier      float64       `json:"eplb_hierarchical_mean,omitempty"`
	Layers        []layerReport `json:"layers"`
}

type layerReport struct {
	Layer  int     `json:"layer"`
	Before float64 `json:"imbalance_before"`
	After  float64 `json:"imbalance"`
	Bound  float64 `json:"lower_bound"`
	Moves  int     `json:"moves"`
}

func (f planFlags) report(loads format.Loads, p plan.Problem, r plan.Result, took time.Duration) (planReport, error) {
	rep := planReport{Source: loads.Source, Objective: p.Objective.String(), Experts: loads.Counts.Experts(),
		Devices: p.Fleet.Devices(), Slots: p.Fleet.Total(), MaxLayer: -1, Moves: r.Moves(),
		PlanMs: float64(took.Microseconds()) / 1000, Expired: r.Expired}
	n := float64(max(1, len(r.MoE)))
	for l, lr := range r.Layers {
		rep.MovesPerLayer = max(rep.MovesPerLayer, lr.Moves)
		if load.Sum(loads.Counts[l]) == 0 {
			continue
		}
		rep.Layers = append(rep.Layers, layerReport{loads.Layer(l), lr.Before, lr.After, lr.Bound, lr.Moves})
		rep.Before += lr.Before / n
		rep.Mean += lr.After / n
		rep.Bound += lr.Bound / n
		if lr.After > rep.Max {
			rep.Max, rep.MaxLayer = lr.After, loads.Layer(l)
		}
		w := p.Weights(l)
		rep.FreeSplit += plan.Relative(r.Placement.FreeSplit(l, w), w, p.Fleet) / n
	}
	rep.Gap = rep.Mean/rep.Bound - 1
	var err error
	rep.EPLBGlobal, rep.EPLBHier, err = f.compare(p, r)
	return rep, err
}

// compare runs EPLB on the same problem: global, and hierarchical when groups
// are given. 0 on unequal devices, where it cannot run.
func (f planFlags) compare(p plan.Problem, r plan.Result) (global, hier float64, err error) {
	if p.Fleet.Speed != nil {
		return 0, 0, nil
	}
	for _, s := range p.Fleet.Slots {
		if s != p.Fleet.Slots[0] {
			return 0, 0, nil
		}
	}
	mean := func(groups, nodes int) (float64, error) {
		sum := 0.0
		for _, l := range r.MoE {
			w := p.Weights(l)
			row, err := plan.EPLB(w, p.Fleet.Total(), groups, nodes, p.Fleet.Devices())
			if err != nil {
				return 0, err
			}
			one := plan.Placement{Experts: len(w), Fleet: p.Fleet, Layers: [][]int{row}}
			sum += one.Imbalance(0, w) / float64(len(r.MoE))
		}
		return sum, nil
	}
	if global, err = mean(1, 1); err == nil && f.groups > 0 {
		hier, err = mean(f.groups, f.nodes)
	}
	return global, hier, err
}

func writeReport(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

func (r planReport) print(w io.Writer) {
	fmt.Fprintf(w, "%d layers of %d experts in %d slots on %d devices, objective %s\n",
		len(r.Layers), r.Experts, r.Slots, r.Devices, r.Objective)
	if r.Expired {
		fmt.Fprintln(w, "stopped at the timeout: the old plan is kept")
	}
	fmt.Fprintf(w, "  imbalance before      %.4f\n", r.Before)
	fmt.Fprintf(w, "  imbalance now         %.4f   worst %.4f in layer %d\n", r.Mean, r.Max, r.MaxLayer)
	fmt.Fprintf(w, "  lower bound           %.4f   gap %.2f %%\n", r.Bound, 100*r.Gap)
	fmt.Fprintf(w, "  free split of tokens  %.4f\n", r.FreeSplit)
	if r.EPLBGlobal > 0 {
		fmt.Fprintf(w, "  EPLB global           %.4f\n", r.EPLBGlobal)
	}
	if r.EPLBHier > 0 {
		fmt.Fprintf(w, "  EPLB hierarchical     %.4f\n", r.EPLBHier)
	}
	fmt.Fprintf(w, "  transfers             %d, at most %d in a layer\n", r.Moves, r.MovesPerLayer)
	fmt.Fprintf(w, "  planned in            %.1f ms\n", r.PlanMs)
}
