package experts

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/weirhq/weir/experts/format"
	"github.com/weirhq/weir/experts/load"
	"github.com/weirhq/weir/experts/plan"
	"github.com/weirhq/weir/internal/cli"
)

const showUsage = "FILE [--load LOADS] [--devices N]"

func showCommand() cli.Command {
	return cli.Command{Name: "show", Short: "show imbalance per layer as a picture", Usage: showUsage, Run: runShow}
}

// runShow shows loads (skew over experts), a plan (replicas), or a plan under
// loads (imbalance over devices).
func runShow(_ context.Context, env cli.Env, args []string) error {
	fs := pflag.NewFlagSet("experts show", pflag.ContinueOnError)
	loadFile := fs.String("load", "", "loads to judge the plan in FILE on")
	devices := fs.Int("devices", 0, "devices of the plan, where its format does not say")
	if err := cli.ParseFlags(env, fs, showUsage, args); err != nil {
		return err
	}
	if fs.NArg() != 1 {
		return cli.Usagef("one file of loads or a plan is wanted, %d given", fs.NArg())
	}
	if *loadFile == "" {
		loads, loadErr := format.ReadLoads(fs.Arg(0))
		if loadErr == nil {
			showLoads(env.Stdout, loads)
			return nil
		}
		p, err := format.ReadPlan(fs.Arg(0), max(1, *devices))
		if err != nil {
			return fmt.Errorf("neither loads nor a plan: %w", loadErr)
		}
		showReplicas(env.Stdout, p)
		return nil
	}
	loads, err := format.ReadLoads(*loadFile)
	if err != nil {
		return err
	}
	p, err := format.ReadPlan(fs.Arg(0), *devices)
	if err != nil {
		return err
	}
	rows, err := p.Rows(loads)
	if err != nil {
		return err
	}
	showPlaced(env.Stdout, loads, rows)
	return nil
}

// pictureWidth is the columns of a picture.
const pictureWidth = 48

var levels = []rune(" ▁▂▃▄▅▆▇█")

// Columns draws x as columns of relative height. More values than columns are
// drawn as the maximum of neighbours, as those are what a step waits for.
func Columns(x []float64) string {
	top := slices.Max(x)
	var b strings.Builder
	n := min(pictureWidth, len(x))
	for c := range n {
		part := x[c*len(x)/n : (c+1)*len(x)/n]
		level := 0
		if top > 0 {
			level = int(slices.Max(part)/top*float64(len(levels)-1) + 0.5)
		}
		b.WriteRune(levels[level])
	}
	return b.String()
}

// Bar draws an imbalance of 1 as nothing and of 3 and more as 20 columns.
func Bar(imbalance float64) string {
	return strings.Repeat("█", max(0, min(20, int((imbalance-1)*10+0.5))))
}

func showLoads(w io.Writer, l format.Loads) {
	moe := l.Counts.MoE()
	per := make([]float64, len(l.Counts))
	fmt.Fprintf(w, "%s loads: %d MoE layers of %d experts\n\n", l.Source, len(moe), l.Counts.Experts())
	fmt.Fprintf(w, "layer  max/mean    cv  load of experts, in order of number\n")
	for _, r := range moe {
		row := l.Counts[r]
		per[r] = load.Imbalance(row)
		fmt.Fprintf(w, "%5d  %8.2f  %4.2f  %s\n", l.Layer(r), per[r], load.Variation(row), Columns(row))
	}
	s := load.Summarise(per, moe)
	fmt.Fprintf(w, "\nhottest expert over mean: %.2f on average, %.2f in layer %d\n", s.Mean, s.Max, layerAt(l, s.Layer))
}

func layerAt(l format.Loads, row int) int {
	if row < 0 {
		return row
	}
	return l.Layer(row)
}

func showReplicas(w io.Writer, p format.Plan) {
	on := ""
	if n := p.Fleet.Devices(); n > 1 { // else the file may not say
		on = fmt.Sprintf(" on %d devices", n)
	}
	fmt.Fprintf(w, "plan of %d layers: %d experts in %d slots%s; give --load for imbalance\n\n",
		len(p.Placement.Layers), p.Experts, p.Fleet.Total(), on)
	fmt.Fprintf(w, "  row  most  replicas of experts, in order of number\n")
	for r := range p.Placement.Layers {
		cnt := p.Replicas(r)
		x := make([]float64, len(cnt))
		for e, c := range cnt {
			x[e] = float64(c)
		}
		fmt.Fprintf(w, "%5d  %4d  %s\n", r, slices.Max(cnt), Columns(x))
	}
}

func showPlaced(w io.Writer, l format.Loads, p plan.Placement) {
	moe := l.Counts.MoE()
	per := make([]float64, len(l.Counts))
	fmt.Fprintf(w, "%d MoE layers of %d experts in %d slots on %d devices\n\n", len(moe), p.Experts, p.Fleet.Total(), p.Fleet.Devices())
	fmt.Fprintf(w, "layer  imbalance                        load of devices\n")
	for _, r := range moe {
		per[r] = p.Imbalance(r, l.Counts[r])
		fmt.Fprintf(w, "%5d  %9.4f  %-20s  %s\n", l.Layer(r), per[r], Bar(per[r]), Columns(p.DeviceLoads(r, l.Counts[r])))
	}
	s := load.Summarise(per, moe)
	fmt.Fprintf(w, "\nimbalance: %.4f on average, %.4f in layer %d\n", s.Mean, s.Max, layerAt(l, s.Layer))
}
