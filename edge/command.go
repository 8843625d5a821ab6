package edge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/spf13/pflag"

	"github.com/weirhq/weir/edge/identity"
	"github.com/weirhq/weir/internal/cli"
	"github.com/weirhq/weir/internal/config"
	"github.com/weirhq/weir/internal/proc"
	"github.com/weirhq/weir/internal/telemetry"
)

// Command is "weir edge".
func Command() cli.Command {
	return cli.Command{Name: "edge", Short: "run the agent of a device", Sub: []cli.Command{
		{Name: "run", Short: "join if need be, and serve", Usage: "[flags]", Run: runAgent},
		{Name: "join", Short: "join a cloud and exit", Usage: "--cloud-url URL --data-dir DIR [flags]", Run: runJoin},
		{Name: "status", Short: "show how a running agent is", Usage: "[flags]", Run: runStatus},
	}}
}

func load(env cli.Env, name string, args []string) (Config, error) {
	var cfg Config
	fs := pflag.NewFlagSet("edge "+name, pflag.ContinueOnError)
	loader := config.New("edge", &cfg)
	loader.Flags(fs)
	if err := cli.ParseFlags(env, fs, "[flags]"+loader.FileKeys(), args); err != nil {
		return cfg, err
	}
	if fs.NArg() > 0 {
		return cfg, cli.Usagef("unexpected argument %q: see 'weir edge %s --help'", fs.Arg(0), name)
	}
	return cfg, loader.Load(env.Getenv)
}

// loadWithData is load for commands that need the data directory.
func loadWithData(env cli.Env, name string, args []string) (Config, error) {
	cfg, err := load(env, name, args)
	if err == nil && cfg.DataDir == "" {
		err = cli.Usagef("--data-dir is missing: the folder for the device's identity and state")
	}
	return cfg, err
}

func runAgent(ctx context.Context, env cli.Env, args []string) error {
	cfg, err := loadWithData(env, "run", args)
	if err != nil {
		return err
	}
	log, err := telemetry.NewLogger(env.Stderr, "edge", cfg.LogLevel)
	if err != nil {
		return err
	}
	ctx, stop := proc.Main(ctx)
	defer stop()
	output, _ := env.Stderr.(*os.File)
	return Run(ctx, cfg, Options{Log: log, WorkerOutput: output})
}

func runJoin(ctx context.Context, env cli.Env, args []string) error {
	cfg, err := loadWithData(env, "join", args)
	if err != nil {
		return err
	}
	if id, err := identity.Load(cfg.identityDir()); err == nil {
		return fmt.Errorf("this device is already %s of tenant %s: remove %s to join anew", id.DeviceID, id.TenantID, cfg.identityDir())
	} else if !errors.Is(err, identity.ErrNone) {
		return err
	}
	token, err := joinToken(cfg)
	if err != nil {
		return err
	}
	ctx, stop := proc.Main(ctx)
	defer stop()
	id, err := joinAny(ctx, cfg.identityDir(), cfg.clouds(), token)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(env.Stdout, "joined %s\ndevice %s\ntenant %s\nidentity %s\n", id.CloudURL, id.DeviceID, id.TenantID, cfg.identityDir())
	return err
}

func runStatus(ctx context.Context, env cli.Env, args []string) error {
	cfg, err := load(env, "status", args)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+cfg.OpsListen+"/readyz", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("no edge agent answers at %s: %w", cfg.OpsListen, err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(env.Stdout, io.LimitReader(resp.Body, 1<<20)); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return errors.New("the edge agent is not ready")
	}
	return nil
}
