package evaluate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/weirhq/weir/internal/cli"
	"github.com/weirhq/weir/internal/client"
	"github.com/weirhq/weir/internal/up"
)

const usage = "[--ready-file F] [--n N] [--rate R] [--json] [--rows FILE]"

// Command is "weir eval".
func Command() cli.Command {
	return cli.Command{Name: "eval", Short: "run the held-out prompts through a running system in each mode", Usage: usage, Run: run}
}

func run(ctx context.Context, env cli.Env, args []string) error {
	fs := pflag.NewFlagSet("eval", pflag.ContinueOnError)
	readyFile := fs.String("ready-file", "", "ready file of 'weir up' (default: the one in its data directory)")
	n := fs.Int("n", 0, "use N prompts, spread over the tasks (0: all)")
	concurrency := fs.Int("concurrency", 1, "prompts at a time; the figures of time are honest at 1")
	rate := fs.Float64("rate", 0, "make auto hold this share of escalations meanwhile, 0 to 1 (default: the policy in force)")
	asJSON := fs.Bool("json", false, "print JSON")
	rows := fs.String("rows", "", "also write one CSV row a prompt to this file, for 'weir cascade eval'")
	if err := cli.ParseFlags(env, fs, usage, args); err != nil {
		return err
	}
	if fs.NArg() > 0 || *concurrency < 1 || *concurrency > 64 {
		return cli.Usagef("want no arguments and --concurrency from 1 to 64")
	}
	if !(*rate >= 0 && *rate <= 1) {
		return cli.Usagef("--rate %v: want 0 to 1", *rate)
	}
	if *readyFile == "" {
		dir, err := up.DefaultData(env.Getenv)
		if err != nil {
			return err
		}
		*readyFile = filepath.Join(dir, up.ReadyName)
	}
	ready, err := client.ReadReady(*readyFile)
	if err != nil {
		return err
	}
	var rowsFile *os.File
	if *rows != "" { // a path that cannot be written is told before the long run
		if rowsFile, err = os.Create(*rows); err != nil {
			return fmt.Errorf("--rows: %w", err)
		}
		defer rowsFile.Close()
	}
	progress := func(done, of int) {
		if done%50 == 0 && !*asJSON {
			fmt.Fprintf(env.Stderr, "%d of %d prompts\n", done, of)
		}
	}
	var r *Report
	if fs.Changed("rate") {
		r, err = runAtRate(ctx, ready, *rate, *n, *concurrency, progress)
	} else {
		r, err = Run(ctx, ready, *n, *concurrency, progress)
	}
	if err != nil {
		return err
	}
	if *asJSON {
		enc := json.NewEncoder(env.Stdout)
		enc.SetIndent("", "  ")
		err = enc.Encode(r)
	} else {
		r.print(env.Stdout)
	}
	if rowsFile == nil || err != nil {
		return err
	}
	if err := errors.Join(r.WriteRows(rowsFile), rowsFile.Close()); err != nil {
		return fmt.Errorf("--rows: %w", err)
	}
	return nil
}

func (r *Report) print(w io.Writer) {
	fmt.Fprintf(w, "%d held-out prompts, each in every mode\n\n", r.Prompts)
	fmt.Fprintf(w, "%-11s %9s %15s %10s %19s %19s\n", "mode", "accuracy", "95 %", "escalated", "TTFT p50/p95 ms", "total p50/p95 ms")
	for _, name := range modes {
		m := r.Modes[name]
		fmt.Fprintf(w, "%-11s %8.1f%% %6.1f-%6.1f %% %9.1f%% %9.2f %9.2f %9.2f %9.2f\n", name, 100*m.Accuracy,
			100*m.Accuracy95[0], 100*m.Accuracy95[1], 100*m.Escalated, m.TTFT.P50, m.TTFT.P95, m.E2E.P50, m.E2E.P95)
	}
	if r.TargetRate != nil {
		fmt.Fprintf(w, "\nauto was told to escalate %.1f %%\n", 100**r.TargetRate)
	}
	fmt.Fprintf(w, "\nauto recovers %.1f %% of the accuracy gap (95 %%: %.1f to %.1f)\n",
		100*r.GapRecovered, 100*r.GapRecovered95[0], 100*r.GapRecovered95[1])
	fmt.Fprintf(w, "best single threshold in hindsight: %.3f with %.1f %% accuracy at %.1f %% escalated\n",
		r.Hindsight.Threshold, 100*r.Hindsight.Accuracy, 100*r.Hindsight.Escalated)
	fmt.Fprintf(w, "expected calibration error of the edge's confidence: %.3f\n", r.ECE)
}
