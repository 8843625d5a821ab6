package fake

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"github.com/weirhq/weir/internal/cli"
	"github.com/weirhq/weir/internal/proc"
	"github.com/weirhq/weir/internal/telemetry"
)

// Command is "weir fake-engine".
func Command() cli.Command {
	return cli.Command{Name: "fake-engine", Short: "speak vLLM's protocol without a model", Usage: "[flags]", Run: runCommand}
}

// roles are those that --role may name.
var roles = []string{"mixed", "prefill", "decode"}

func runCommand(ctx context.Context, env cli.Env, args []string) error {
	var o Options
	fs := pflag.NewFlagSet("fake-engine", pflag.ContinueOnError)
	listen := fs.String("listen", "127.0.0.1:8000", "address")
	fs.StringVar(&o.Model, "model", "fake", "model name as served")
	fs.StringVar(&o.EngineID, "engine-id", "", "remote_engine_id (default: random)")
	fs.DurationVar(&o.TTFT, "ttft", 0, "time to the first token of an empty prompt")
	fs.DurationVar(&o.PerPromptToken, "per-prompt-token", 0, "what each computed prompt token adds")
	fs.DurationVar(&o.ITL, "itl", 0, "time between two tokens")
	fs.DurationVar(&o.PerSequence, "per-sequence", 0, "what each request that is computed adds to the time between two tokens")
	fs.IntVar(&o.MaxTokens, "tokens", 16, "length of an answer when the request names none")
	fs.IntVar(&o.Context, "ctx", 8192, "tokens of prompt and answer")
	fs.IntVar(&o.MaxSeqs, "max-seqs", 256, "requests computed at a time, others wait")
	fs.DurationVar(&o.Lease, "kv-lease", 30*time.Second, "how long a prefill leg's blocks are kept")
	fs.BoolVar(&o.Recompute, "kv-recompute", false, "compute the prompt when its blocks cannot be fetched, instead of failing")
	fs.StringVar(&o.Host, "advertise-host", "", "remote_host (default: as the prefill leg was asked)")
	fs.BoolVar(&o.Weir, "weir", false, "speak as a Weir worker does beyond vLLM: state, resumption, migration")
	fs.StringVar(&o.Name, "name", "", "name, with --weir (default: fake)")
	fs.StringVar(&o.Role, "role", "", "mixed, prefill or decode, with --weir (default: mixed)")
	faults := fs.StringArray("fault", nil, "what goes wrong: FAULT[@TOKENS][:LEG][/EVERY][xTIMES], e.g. stall@3:decode or busy/2; may be repeated")
	fs.DurationVar(&o.Delay, "fault-delay", time.Second, "wait of the fault slow")
	fs.BoolVar(&o.OldMetrics, "old-metrics", false, "metrics with the names and labels of older vLLM versions")
	level := fs.String("log-level", "info", "debug, info, warn or error")
	if err := cli.ParseFlags(env, fs, "[flags]", args); err != nil {
		return err
	}
	if fs.NArg() > 0 || o.MaxSeqs < 1 || o.Context < 2 || o.MaxTokens < 1 || o.TTFT < 0 || o.ITL < 0 || o.PerSequence < 0 || o.PerPromptToken < 0 {
		return cli.Usagef("no arguments, and no flag may be negative or 0 where a size is meant: see 'weir fake-engine --help'")
	}
	if o.Role != "" && !slices.Contains(roles, o.Role) {
		return cli.Usagef("--role: %q is not mixed, prefill or decode", o.Role)
	}
	for _, text := range *faults {
		s, err := ParseScript(text)
		if err != nil {
			return cli.Usagef("%v", err)
		}
		o.Faults = append(o.Faults, s)
	}
	var err error
	if o.Log, err = telemetry.NewLogger(env.Stderr, "fake-engine", *level); err != nil {
		return err
	}
	ctx, stop := proc.Main(ctx)
	defer stop()
	return Serve(ctx, *listen, o)
}

// drain is how long requests may take to end when the engine stops.
const drain = 5 * time.Second

// Serve runs an Engine on an address until ctx ends.
func Serve(ctx context.Context, addr string, o Options) error {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("fake engine cannot listen: %w", err)
	}
	e := New(o)
	srv := &http.Server{Handler: e, ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	e.o.Log.Info("fake engine ready", "listen", ln.Addr().String(), "model", e.o.Model, "engine_id", e.o.EngineID)
	select {
	case err = <-served:
		return err
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.Background(), drain)
	defer cancel()
	if srv.Shutdown(grace) != nil {
		_ = srv.Close() // requests that do not end are cut, as a vLLM cuts them
	}
	<-served
	return nil
}
