package experts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/weirhq/weir/experts/format"
	"github.com/weirhq/weir/experts/load"
	"github.com/weirhq/weir/experts/plan"
	"github.com/weirhq/weir/experts/rebalance"
	"github.com/weirhq/weir/internal/cli"
)

const replayUsage = "--loads DIR --devices N [--spare N] [flags]"

func replayCommand() cli.Command {
	return cli.Command{Name: "replay", Short: "run windows of load through the controller", Usage: replayUsage, Run: runReplay}
}

// replayFlags are the flags of "weir experts replay".
type replayFlags struct {
	fleetFlags
	loads, from  string
	repeat, topK int
	resample     int64
	seed         uint64
	json         bool
	config       rebalance.Config
}

func parseReplayFlags(env cli.Env, args []string) (replayFlags, error) {
	f := replayFlags{config: rebalance.Default()}
	c := &f.config
	fs := pflag.NewFlagSet("experts replay", pflag.ContinueOnError)
	fs.StringVar(&f.loads, "loads", "", "folder whose load files are windows, in order of name")
	fs.IntVar(&f.devices, "devices", 0, "number of equal devices")
	fs.IntVar(&f.spare, "spare", 0, "slots beyond one per expert, over all devices")
	fs.StringVar(&f.slots, "slots", "", "slots of each device, instead of --devices and --spare")
	fs.StringVar(&f.speed, "speed", "", "relative speed of each device")
	fs.StringVar(&f.from, "from", "", "plan at the start (default: planned from the first file)")
	fs.IntVar(&f.repeat, "repeat", 1, "windows per file")
	fs.Int64Var(&f.resample, "resample", 0, "tokens per window, drawn from the file's distribution; 0 takes the file as it is")
	fs.Uint64Var(&f.seed, "seed", 1, "seed of --resample")
	fs.IntVar(&f.topK, "top-k", 8, "experts per token, where a file does not say")
	fs.Float64Var(&c.Start, "start", c.Start, "imbalance above which a window counts as skewed")
	fs.Float64Var(&c.Gain, "gain", c.Gain, "imbalance now over that of the candidate, at least")
	fs.IntVar(&c.Patience, "patience", c.Patience, "skewed windows in a row before anything moves")
	fs.IntVar(&c.Cooldown, "cooldown", c.Cooldown, "windows of rest after a move")
	fs.IntVar(&c.Moves, "moves", c.Moves, "transfers per layer and round")
	fs.Int64Var(&c.HalfLife, "half-life", c.HalfLife, "tokens after which a window counts half")
	fs.BoolVar(&f.json, "json", false, "one JSON object per window, and one for the summary")
	if err := cli.ParseFlags(env, fs, replayUsage, args); err != nil {
		return f, err
	}
	switch {
	case fs.NArg() > 0:
		return f, cli.Usagef("unexpected argument %q", fs.Arg(0))
	case f.loads == "":
		return f, cli.Usagef("--loads is missing")
	case f.repeat < 1 || f.repeat > 1_000_000 || f.resample < 0 || f.topK < 1 || c.Patience < 1 || c.Cooldown < 0 || c.Moves < 0 || c.HalfLife < 1:
		return f, cli.Usagef("a number is negative or zero where it must not be")
	case !(c.Start >= 1) || !(c.Gain >= 1):
		return f, cli.Usagef("--start and --gain are imbalances of at least 1")
	}
	return f, nil
}

// namedLoads is one file of the folder.
type namedLoads struct {
	name  string
	loads format.Loads
}

// readWindows reads all load files of a folder in order of name. Sound files
// of other kinds are named in notes and left out; a damaged file is an error.
// Hidden files and texts are not looked at.
func readWindows(dir string, notes io.Writer) ([]namedLoads, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read windows: %w", err)
	}
	var out []namedLoads
	for _, e := range entries {
		name := e.Name()
		if strings.HasPrefix(name, ".") || strings.HasSuffix(name, ".md") || strings.HasSuffix(name, ".txt") {
			continue
		}
		l, err := format.ReadLoads(filepath.Join(dir, name))
		if errors.Is(err, format.ErrNotLoads) {
			fmt.Fprintf(notes, "weir experts replay: %s is left out: %v\n", name, format.ErrNotLoads)
			continue
		}
		if err != nil {
			return nil, err
		}
		if len(out) > 0 && (len(l.Counts) != len(out[0].loads.Counts) || l.Counts.Experts() != out[0].loads.Counts.Experts()) {
			return nil, fmt.Errorf("%s: %w: %dx%d, %s has %dx%d", name, load.ErrShape, len(l.Counts), l.Counts.Experts(),
				out[0].name, len(out[0].loads.Counts), out[0].loads.Counts.Experts())
		}
		out = append(out, namedLoads{name, l})
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no load files in %s", filepath.Base(dir))
	}
	return out, nil
}

func runReplay(ctx context.Context, env cli.Env, args []string) error {
	f, err := parseReplayFlags(env, args)
	if err != nil {
		return err
	}
	files, err := readWindows(f.loads, env.Stderr)
	if err != nil {
		return err
	}
	start, err := f.start(files[0].loads)
	if err != nil {
		return err
	}
	r := replay{flags: f, w: env.Stdout, state: rebalance.NewState(start), start: start, rng: rand.New(rand.NewPCG(f.seed, 0))}
	for _, file := range files {
		for range f.repeat {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := r.window(file); err != nil {
				return err
			}
		}
	}
	return r.summary()
}

// start is the placement in force before the first window.
func (f replayFlags) start(first format.Loads) (plan.Placement, error) {
	fleet, err := f.fleet(first.Counts.Experts())
	if err != nil {
		return plan.Placement{}, err
	}
	if f.from != "" {
		p, err := format.ReadPlan(f.from, fleet.Devices())
		if err != nil {
			return plan.Placement{}, err
		}
		rows, err := p.Rows(first)
		if err != nil {
			return plan.Placement{}, err
		}
		r, err := plan.Solve(plan.Problem{Loads: first.Counts, Fleet: fleet, Old: &rows, Moves: 0})
		return r.Placement, err
	}
	r, err := plan.Solve(plan.Problem{Loads: first.Counts, Fleet: fleet})
	return r.Placement, err
}

// replay is the run of a controller over windows.
type replay struct {
	flags     replayFlags
	w         io.Writer
	state     rebalance.State
	start     plan.Placement
	rng       *rand.Rand
	windows   int
	moves     int
	rollBacks int
	transfers int
	with      float64 // sums over windows
	without   float64
}

// replayWindow is one line of --json.
type replayWindow struct {
	Window int    `json:"window"`
	File   string `json:"file"`
	rebalance.Decision
	Put float64 `json:"imbalance_staying_put"`
}

func (r *replay) window(file namedLoads) error {
	w := r.flags.observe(file.loads, r.rng)
	var d rebalance.Decision
	r.state, d = rebalance.Decide(r.flags.config, r.state, rebalance.Observation{Window: w})
	r.windows++
	put := 0.0
	moe := w.Demand.MoE()
	for _, l := range moe {
		put += r.start.Imbalance(l, w.Demand[l]) / float64(len(moe))
	}
	switch d.Action {
	case rebalance.Move:
		r.moves++
		r.transfers += d.Transfers
	case rebalance.RollBack:
		r.rollBacks++
		r.transfers += d.Transfers
	}
	r.with += d.Now
	r.without += put
	if r.flags.json {
		return json.NewEncoder(r.w).Encode(replayWindow{r.windows, file.name, d, put})
	}
	_, err := fmt.Fprintf(r.w, "%5d  %-32.32s  %-9s %-28s  imbalance %.4f  staying put %.4f  transfers %d\n",
		r.windows, file.name, d.Action, d.Reason, d.Now, put, d.Transfers)
	return err
}

// observe is one window of a file.
func (f replayFlags) observe(l format.Loads, rng *rand.Rand) load.Window {
	k := l.TopK
	if k == 0 {
		k = f.topK
	}
	if l.Window != nil && f.resample == 0 {
		return *l.Window
	}
	w := load.Window{TopK: k, Demand: l.Counts, Served: l.Counts}
	if f.resample > 0 {
		w.Demand = resample(l.Counts, float64(f.resample)*float64(k), rng)
		w.Served = w.Demand
	}
	for _, row := range w.Demand {
		w.Tokens = max(w.Tokens, int64(load.Sum(row))/int64(k))
	}
	return w
}

// resample draws about that many token-expert pairs per layer: independent
// Poisson counts, which differ from a multinomial only in that their sum
// varies a little.
func resample(c load.Counts, draws float64, rng *rand.Rand) load.Counts {
	out := load.NewCounts(len(c), c.Experts())
	for l, row := range c {
		sum := load.Sum(row)
		for e, x := range row {
			if x > 0 {
				out[l][e] = poisson(x/sum*draws, rng)
			}
		}
	}
	return out
}

// poisson draws by inversion, and by the normal approximation above 50.
func poisson(mean float64, rng *rand.Rand) float64 {
	if mean > 50 {
		return math.Round(math.Max(0, mean+math.Sqrt(mean)*rng.NormFloat64()))
	}
	limit, p, n := math.Exp(-mean), 1.0, -1.0
	for p > limit {
		p *= rng.Float64()
		n++
	}
	return math.Max(0, n)
}

// replaySummary is the last line of --json.
type replaySummary struct {
	Windows    int     `json:"windows"`
	Moves      int     `json:"moves"`
	RollBacks  int     `json:"roll_backs"`
	Transfers  int     `json:"transfers"`
	Imbalance  float64 `json:"imbalance_mean"`
	StayingPut float64 `json:"imbalance_staying_put_mean"`
}

func (r *replay) summary() error {
	n := float64(r.windows)
	s := replaySummary{r.windows, r.moves, r.rollBacks, r.transfers, r.with / n, r.without / n}
	if r.flags.json {
		return json.NewEncoder(r.w).Encode(s)
	}
	_, err := fmt.Fprintf(r.w, "\n%d windows: %d moves and %d roll-backs of %d transfers; imbalance %.4f on average, staying put %.4f\n",
		s.Windows, s.Moves, s.RollBacks, s.Transfers, s.Imbalance, s.StayingPut)
	return err
}
