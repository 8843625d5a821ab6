package worker

import (
	"context"
	"errors"

	"github.com/spf13/pflag"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/internal/cli"
	"github.com/weirhq/weir/internal/config"
	"github.com/weirhq/weir/internal/proc"
	"github.com/weirhq/weir/internal/telemetry"
)

// Command is "weir worker".
func Command() cli.Command {
	return cli.Command{Name: "worker", Short: "serve one model on this machine", Usage: "--model FILE|NAME [flags]", Run: run}
}

// run is the worker, or with a first word its bench.
func run(ctx context.Context, env cli.Env, args []string) error {
	if len(args) > 0 && args[0] == "bench" {
		return runBench(ctx, env, args[1:])
	}
	return runCommand(ctx, env, args)
}

func runCommand(ctx context.Context, env cli.Env, args []string) error {
	var c Config
	fs := pflag.NewFlagSet("worker", pflag.ContinueOnError)
	loader := config.New("worker", &c)
	loader.Flags(fs)
	if err := cli.ParseFlags(env, fs, "[bench] --model FILE|NAME [flags]"+loader.FileKeys(), args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return cli.Usagef("unexpected argument %q: see 'weir worker --help'", fs.Arg(0))
	}
	if err := loader.Load(env.Getenv); err != nil {
		return err
	}
	log, err := telemetry.NewLogger(env.Stderr, "worker", c.LogLevel)
	if err != nil {
		return err
	}
	ctx, stop := proc.Main(ctx)
	defer stop()
	tel, err := telemetry.New(ctx, telemetry.Options{Role: "worker", Name: c.Name, Endpoint: c.OTLPEndpoint})
	if err != nil {
		return err
	}
	err = Run(ctx, Options{Config: c, Log: log, Tracer: tel.Tracer, Load: func() (engine.Runner, error) {
		return c.loadRunner(log, env.Getenv)
	}})
	return errors.Join(err, tel.Shutdown())
}
