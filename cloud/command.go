package cloud

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/weirhq/weir/cloud/control"
	"github.com/weirhq/weir/internal/cli"
	"github.com/weirhq/weir/internal/config"
	"github.com/weirhq/weir/internal/proc"
	"github.com/weirhq/weir/internal/telemetry"
	"github.com/weirhq/weir/tenants"
)

const usage = "[--config FILE] [flags]"

// Command is "weir cloud".
func Command() cli.Command {
	return cli.Command{Name: "cloud", Short: "gateway and control plane", Usage: usage, Run: runCommand}
}

func runCommand(ctx context.Context, env cli.Env, args []string) error {
	conf, databaseURL, err := loadConfig(env, args)
	if err != nil {
		return err
	}
	ctx, stop := proc.Main(ctx)
	defer stop()
	return Run(ctx, conf, databaseURL, env.Stderr)
}

// loadConfig reads the section "cloud" and finds the database's URL.
func loadConfig(env cli.Env, args []string) (conf Config, databaseURL string, err error) {
	fs := pflag.NewFlagSet("cloud", pflag.ContinueOnError)
	loader := config.New("cloud", &conf)
	loader.Flags(fs)
	// database_url is a secret and so has no flag of its own; this one takes
	// only what is none.
	flag := fs.String("database-url", "", "PostgreSQL connection URL without a password")
	if err := cli.ParseFlags(env, fs, usage+loader.FileKeys(), args); err != nil {
		return conf, "", err
	}
	if fs.NArg() > 0 {
		return conf, "", cli.Usagef("unexpected argument %q: see 'weir cloud --help'", fs.Arg(0))
	}
	if err := loader.Load(env.Getenv); err != nil {
		return conf, "", err
	}
	if conf.Name == "" {
		conf.Name = defaultName()
	}
	databaseURL, err = conf.databaseURL(*flag, env.Getenv)
	return conf, databaseURL, err
}

// Run serves the cloud until ctx ends, then drains. It logs to w. A database
// that is away does not end it: the gateway serves from its last snapshot, or
// stays unready until there is one.
func Run(ctx context.Context, conf Config, databaseURL string, w io.Writer) error {
	log, err := telemetry.NewLogger(w, "cloud", conf.LogLevel)
	if err != nil {
		return err
	}
	tel, err := telemetry.New(ctx, telemetry.Options{Role: "cloud", Name: conf.Name, Endpoint: conf.OTLPEndpoint})
	if err != nil {
		return err
	}
	c, err := control.New(control.Options{DatabaseURL: databaseURL, SecretsDir: conf.SecretsDir, DataDir: conf.DataDir, Models: conf.catalog(),
		Pools: conf.Pools, Names: serverNames(&conf),
		UsageBytes: conf.UsageBytes, Retention: conf.Retention, Log: log})
	if err != nil {
		return errors.Join(err, tel.Shutdown())
	}
	var r *role
	if err = tel.Registry.Register(c.Rows()); err == nil {
		r, err = newRole(conf, c, c.Authority(), tel, log)
	}
	if err != nil {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		return errors.Join(err, c.Run(ended), tel.Shutdown()) // Run frees what New has opened
	}
	if err := r.run(ctx); err != nil {
		return errors.Join(fmt.Errorf("cloud: %w", err), tel.Shutdown())
	}
	return tel.Shutdown()
}

// catalog is what the snapshot tells devices of the cloud's models.
func (c *Config) catalog() []tenants.Model {
	var out []tenants.Model
	for name, m := range c.models() {
		entry := tenants.Model{Name: name, Cascade: !m.Named, Continues: c.Models[name].Continues, ContextTokens: c.Models[name].Context}
		if m.Named {
			entry.Tier = tenants.Cloud
		}
		out = append(out, entry)
	}
	slices.SortFunc(out, func(a, b tenants.Model) int { return strings.Compare(a.Name, b.Name) })
	return out
}

var _ plane = (*control.Control)(nil)
