package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/weirhq/weir/engine/worker/cost"
	"github.com/weirhq/weir/engine/worker/profile"
	"github.com/weirhq/weir/internal/cli"
	"github.com/weirhq/weir/internal/config"
	"github.com/weirhq/weir/internal/telemetry"
)

const benchUsage = "bench --model FILE|NAME --out FILE [flags]"

// runBench is "weir worker bench": it measures the machine with a model and
// writes its cost model.
func runBench(ctx context.Context, env cli.Env, args []string) error {
	var c Config
	fs := pflag.NewFlagSet("worker bench", pflag.ContinueOnError)
	out := fs.String("out", "", "file to write the cost model to, for --cost-model")
	most := fs.Duration("time", 30*time.Second, "how long to measure, about")
	loader := config.New("worker", &c)
	loader.Flags(fs)
	if err := cli.ParseFlags(env, fs, "--model FILE|NAME --out FILE [flags]", args); err != nil {
		return err
	}
	if *out == "" || fs.NArg() > 0 {
		return cli.Usagef("usage: weir worker %s", benchUsage)
	}
	if err := loader.Load(env.Getenv); err != nil {
		return err
	}
	log, err := telemetry.NewLogger(env.Stderr, "worker", c.LogLevel)
	if err != nil {
		return err
	}
	r, err := c.loadRunner(log, env.Getenv)
	if err != nil {
		return err
	}
	samples, err := profile.Measure(ctx, r, *most)
	info := r.Info()
	if err := errors.Join(err, r.Close()); err != nil {
		return err
	}
	m := cost.Model{Fingerprint: info.Fingerprint.String(), Threads: c.Threads}
	samples, m.Noise = cost.Typical(samples)
	if m.Pieces, err = cost.Fit(samples); err == nil {
		m.HeldOut, err = cost.HeldOut(samples)
	}
	if err != nil {
		return fmt.Errorf("%d steps were measured in %v: %w: give it more --time or --max-seqs", len(samples), *most, err)
	}
	if err := m.Write(*out); err != nil {
		return err
	}
	fmt.Fprintf(env.Stdout, "error on steps left out of the fit %.1f %%; single steps are %.1f %% from the median of their kind\n", 100*m.HeldOut, 100*m.Noise)
	if m.Poor() {
		log.Warn("the cost model is poor: measure again when nothing else runs on this machine, for a longer --time", "held_out", m.HeldOut)
	}
	for _, p := range m.Pieces {
		fmt.Fprintf(env.Stdout, "%s: %.3f ms + %.4f per decode + %.4f per prompt token + %.6f per token of context + %.8f per pair, %d samples, error %.1f %%\n",
			bound(p), p.Fixed, p.PerDecode, p.PerPrefill, p.PerContext, p.PerPair, p.Samples, 100*p.Residual)
	}
	return nil
}

func bound(p cost.Piece) string {
	if p.UpTo == 0 {
		return "larger steps"
	}
	return fmt.Sprintf("steps of up to %d tokens", p.UpTo)
}
