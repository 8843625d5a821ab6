package evaluate

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/weirhq/weir/engine/models"
	"github.com/weirhq/weir/engine/models/heldout"
	"github.com/weirhq/weir/internal/chart"
	"github.com/weirhq/weir/internal/cli"
)

// Commands stand under "weir experts".
func Commands() []cli.Command {
	return []cli.Command{
		{Name: "demo", Short: "a change of topic under live balancing, with hub-cloud in this process", Usage: demoUsage, Run: runDemo},
		{Name: "routing", Short: "accuracy against imbalance under LASER-style routing, on the held-out prompts", Usage: routingUsage, Run: runRouting},
	}
}

const (
	demoUsage    = "[--window N] [--routing] [--svg FILE]"
	routingUsage = "[--every N] [--fit] [--svg FILE]"
)

// unpacked gives a folder for the bundled model.
func unpacked() (dir string, remove func(), err error) {
	if dir, err = os.MkdirTemp("", "weir-experts-"); err != nil {
		return "", nil, fmt.Errorf("scratch folder: %w", err)
	}
	return dir, func() { _ = os.RemoveAll(dir) }, nil
}

func runDemo(ctx context.Context, env cli.Env, args []string) error {
	fs := pflag.NewFlagSet("experts demo", pflag.ContinueOnError)
	window := fs.Int64("window", 2000, "tokens after which the loop decides")
	threads := fs.Int("threads", 1, "threads that compute; shards are shared out over them")
	routing := fs.Bool("routing", false, "route LASER-style as recommended, too; then answers change")
	svg := fs.String("svg", "", "also draw imbalance by window")
	if err := cli.ParseFlags(env, fs, demoUsage, args); err != nil {
		return err
	}
	if fs.NArg() > 0 || *window < 200 || *threads < 1 {
		return cli.Usagef("experts demo takes flags only: --window from 200, --threads from 1")
	}
	dir, remove, err := unpacked()
	if err != nil {
		return err
	}
	defer remove()
	r, err := Live(ctx, LiveOptions{CacheDir: dir, Threads: *threads, Window: *window, Routing: *routing, Seen: func(w LiveWindow) { printWindow(env.Stdout, w) }})
	if err != nil {
		return err
	}
	r.Print(env.Stdout)
	if *svg != "" {
		return r.Chart().WriteFile(filepath.Clean(*svg))
	}
	return nil
}

func printWindow(w io.Writer, x LiveWindow) {
	d := x.Decision
	topic := "commands"
	if x.After {
		topic = "arithmetic"
	}
	fmt.Fprintf(w, "window %2d  %-10s  imbalance %.3f, served %.3f  %5.0f tok/s  %s (%s)", x.Number, topic, d.Now, x.Served, x.Rate, d.Action, d.Reason)
	if d.Transfers > 0 {
		fmt.Fprintf(w, ", %d transfers, target %.3f", d.Transfers, d.Target)
	}
	fmt.Fprintln(w)
}

// Print writes the report's figures.
func (r LiveReport) Print(w io.Writer) {
	fmt.Fprintf(w, "\nimbalance: %.3f settled, %.3f after the change, %.3f three windows after the move (limit %.3f)\n", r.Settled, r.Shifted, r.Final, r.Limit())
	fmt.Fprintf(w, "the move came in window %d after the change; %d moves copied %.1f MB\n", r.Decided, r.Moves, float64(r.Copied)/1e6)
	fmt.Fprintf(w, "%d answers, %d changed, %d failed; tok/s %.0f before, %.0f until the move was done, %.0f later\n", r.Answers, r.Changed, r.Failed, r.Before, r.During, r.Later)
	for i, s := range r.Shards {
		fmt.Fprintf(w, "shard %d: %d slots per layer, %.2f MB of weights\n", i, s.Slots, float64(s.Bytes)/1e6)
	}
}

// Chart draws imbalance by window.
func (r LiveReport) Chart() chart.Chart {
	c := chart.Chart{Title: "A change of topic: commands, then arithmetic", X: "window of tokens", Y: "imbalance of shards"}
	var s chart.Series
	changed := false
	for _, w := range r.Windows {
		p := chart.Point{X: float64(w.Number), Y: w.Decision.Now}
		if w.Decision.Transfers > 0 {
			p.Label = fmt.Sprintf("%d transfers", w.Decision.Transfers)
		}
		if w.After && !changed {
			changed = true
			c.Marks = append(c.Marks, chart.Mark{X: p.X - 0.5, Name: "topic changes"})
		}
		s.Points = append(s.Points, p)
	}
	c.Series = []chart.Series{s}
	return c
}

func runRouting(ctx context.Context, env cli.Env, args []string) error {
	fs := pflag.NewFlagSet("experts routing", pflag.ContinueOnError)
	every := fs.Int("every", 1, "take every n-th prompt only")
	fit := fs.Bool("fit", false, "the grid over which the recommended setting was chosen, on calibration prompts")
	svg := fs.String("svg", "", "also draw accuracy against imbalance")
	if err := cli.ParseFlags(env, fs, routingUsage, args); err != nil {
		return err
	}
	if fs.NArg() > 0 || *every < 1 {
		return cli.Usagef("experts routing takes flags only, and --every from 1")
	}
	dir, remove, err := unpacked()
	if err != nil {
		return err
	}
	defer remove()
	examples, settings, err := experiment(dir, *fit)
	if err != nil {
		return err
	}
	fmt.Fprintf(env.Stdout, "%-29s accuracy   points (95 %%)            shards  experts  moved\n", "setting")
	rows, err := Routing(ctx, dir, Every(examples, *every, ""), settings, func(r Routed) { printRouted(env.Stdout, r) })
	if err != nil || *svg == "" {
		return err
	}
	return RoutingChart(rows).WriteFile(filepath.Clean(*svg))
}

// experiment is the prompts and settings of a table. What was chosen on
// calibration prompts is judged on others.
func experiment(cacheDir string, fit bool) ([]models.Example, []Setting, error) {
	if fit {
		examples, err := models.Calibration()
		return examples, Fit(), err
	}
	settings, err := Settings(cacheDir)
	if err != nil {
		return nil, nil, err
	}
	examples, err := heldout.Test()
	return examples, settings, err
}

func printRouted(w io.Writer, r Routed) {
	fmt.Fprintf(w, "%-29s  %5.1f %%   %+6.2f (%+6.2f to %+6.2f)  %6.3f   %6.3f  %4.1f %%\n",
		strings.TrimSpace(r.Group+" "+r.Name), 100*r.Accuracy, r.Points, r.Low, r.High, r.Imbalance, r.Experts, 100*r.Distortion)
}

// drawn is the loss in points beyond which a setting is not drawn: nobody wants
// it, and it would flatten the rest.
const drawn = 3

// RoutingChart draws accuracy against the imbalance of shards.
func RoutingChart(rows []Routed) chart.Chart {
	c := chart.Chart{Title: fmt.Sprintf("Routing, hub-cloud: settings that lose at most %d points", drawn), X: "imbalance of shards without replicas", Y: "accuracy, %"}
	at := map[string]int{}
	for _, r := range rows {
		if r.Points < -drawn {
			continue
		}
		if _, ok := at[r.Group]; !ok {
			at[r.Group] = len(c.Series)
			c.Series = append(c.Series, chart.Series{Name: r.Group})
		}
		a := 100 * r.Accuracy
		s := &c.Series[at[r.Group]]
		s.Points = append(s.Points, chart.Point{X: r.Imbalance, Y: a, Low: a + r.Low - r.Points, High: a + r.High - r.Points, Label: r.Name})
	}
	for _, s := range c.Series {
		slices.SortFunc(s.Points, func(a, b chart.Point) int { return cmp.Compare(a.X, b.X) })
	}
	return c
}
