package experts

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/weirhq/weir/experts/format"
	"github.com/weirhq/weir/experts/plan"
	"github.com/weirhq/weir/experts/rebalance"
	"github.com/weirhq/weir/experts/watch"
	"github.com/weirhq/weir/internal/cli"
)

const watchUsage = "--replica URL=DIR --devices N [--spare N] (--audit | --plan-file FILE --hook CMD) [flags]"

func watchCommand() cli.Command {
	return cli.Command{Name: "watch", Short: "balance a fleet of SGLang replicas", Usage: watchUsage, Run: runWatch}
}

// watchFlags are the flags of "weir experts watch".
type watchFlags struct {
	fleetFlags
	replicas      []string
	from, keyFile string
	hook          string
	once          bool
	o             watch.Options
}

func parseWatchFlags(env cli.Env, args []string) (watchFlags, error) {
	f := watchFlags{o: watch.Options{Config: rebalance.Default()}}
	o, c := &f.o, &f.o.Config
	fs := pflag.NewFlagSet("experts watch", pflag.ContinueOnError)
	fs.StringArrayVar(&f.replicas, "replica", nil, "URL=DIR: a server and its recorder folder as seen here; repeat for each")
	fs.IntVar(&f.devices, "devices", 0, "ep_size of a replica")
	fs.IntVar(&f.spare, "spare", 0, "its --ep-num-redundant-experts")
	fs.StringVar(&f.from, "from", "", "plan that the replicas run now (default: --plan-file if it is there, else trivial)")
	fs.StringVar(&o.PlanFile, "plan-file", "", "file that the replicas give to --init-expert-location")
	fs.StringVar(&f.hook, "hook", "", "program that restarts one replica; its URL and the plan file are appended")
	fs.BoolVar(&o.Audit, "audit", false, "decide and log, change nothing")
	fs.BoolVar(&f.once, "once", false, "one cycle, reported as JSON")
	fs.DurationVar(&o.Window, "window", time.Minute, "how long one recording runs")
	fs.DurationVar(&o.Interval, "interval", 4*time.Minute, "pause between recordings")
	fs.DurationVar(&o.ReadyTimeout, "ready-timeout", 30*time.Minute, "for a replica to come back")
	fs.IntVar(&o.TopK, "top-k", 8, "experts per token")
	fs.IntVar(&o.Hidden, "hidden-layers", 0, "hidden layers of the model, where recordings leave some out")
	fs.StringVar(&f.keyFile, "key-file", "", "file with SGLang's admin key (or WEIR_SGLANG_KEY)")
	fs.Float64Var(&c.Start, "start", c.Start, "imbalance above which a window counts as skewed")
	fs.Float64Var(&c.Gain, "gain", c.Gain, "imbalance now over that of the candidate, at least")
	fs.IntVar(&c.Patience, "patience", c.Patience, "skewed windows in a row before anything moves")
	fs.IntVar(&c.Cooldown, "cooldown", c.Cooldown, "windows of rest after a move")
	// A restart loads every expert anyway, so nothing is won by moving few.
	fs.IntVar(&c.Moves, "moves", -1, "transfers per layer, -1 for any number")
	if err := cli.ParseFlags(env, fs, watchUsage, args); err != nil {
		return f, err
	}
	switch {
	case fs.NArg() > 0:
		return f, cli.Usagef("unexpected argument %q", fs.Arg(0))
	case len(f.replicas) == 0:
		return f, cli.Usagef("--replica is missing")
	case f.devices == 0:
		return f, cli.Usagef("--devices is missing")
	case !o.Audit && (o.PlanFile == "" || strings.TrimSpace(f.hook) == ""):
		return f, cli.Usagef("--plan-file and --hook are needed, or --audit")
	case c.Patience < 1 || c.Cooldown < 0 || c.Moves < -1 || o.TopK < 1 || o.Window < 0 || o.Interval < 0 || o.Hidden < 0:
		return f, cli.Usagef("a number is negative or zero where it must not be")
	case !(c.Start >= 1) || !(c.Gain >= 1):
		return f, cli.Usagef("--start and --gain are imbalances of at least 1")
	}
	return f, nil
}

func runWatch(ctx context.Context, env cli.Env, args []string) error {
	f, err := parseWatchFlags(env, args)
	if err != nil {
		return err
	}
	if err := f.complete(env); err != nil {
		return err
	}
	w, err := watch.New(f.o)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	if !f.once {
		return w.Run(ctx)
	}
	rep, err := w.Cycle(ctx)
	if err != nil {
		return err
	}
	return json.NewEncoder(env.Stdout).Encode(struct {
		rebalance.Decision
		Tokens   int64   `json:"tokens"`
		Reported float64 `json:"reported_balancedness,omitempty"`
	}{rep.Decision, rep.Window.Tokens, rep.Reported})
}

// complete fills the options that are more than a flag.
func (f *watchFlags) complete(env cli.Env) error {
	for _, r := range f.replicas {
		at := strings.LastIndex(r, "=")
		if at < 0 {
			return cli.Usagef("--replica is URL=DIR")
		}
		f.o.Replicas = append(f.o.Replicas, watch.Replica{URL: r[:at], Dir: r[at+1:]})
	}
	f.o.Hook = strings.Fields(f.hook)
	f.o.Log = slog.New(slog.NewTextHandler(env.Stderr, nil))
	f.o.Fleet = f.fleet
	f.o.Key = env.Getenv("WEIR_SGLANG_KEY")
	if f.keyFile != "" {
		key, err := os.ReadFile(f.keyFile)
		if err != nil {
			return fmt.Errorf("--key-file: %w", err)
		}
		f.o.Key = strings.TrimSpace(string(key))
	}
	if f.from == "" {
		if _, err := os.Stat(f.o.PlanFile); err == nil {
			f.from = f.o.PlanFile
		}
	}
	if f.from != "" {
		f.o.Start = func(l format.Loads, fleet plan.Fleet) (plan.Placement, error) {
			p, err := format.ReadPlan(f.from, fleet.Devices())
			if err != nil {
				return plan.Placement{}, err
			}
			rows, err := p.Rows(l)
			if err == nil && rows.Fleet.Total() != fleet.Total() {
				err = fmt.Errorf("plan has %d slots, --devices and --spare say %d", rows.Fleet.Total(), fleet.Total())
			}
			return rows, err
		}
	}
	return nil
}
