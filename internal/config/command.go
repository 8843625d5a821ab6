package config

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"github.com/weirhq/weir/internal/cli"
)

// Command is "weir config": check and print what a role would run with.
// sections makes an empty struct for each section's name.
func Command(sections map[string]func() any) cli.Command {
	return cli.Command{Name: "config", Short: "check a configuration file, print what a role would use", Sub: []cli.Command{
		{Name: "check", Short: "check every section of a file", Usage: "FILE", Run: func(_ context.Context, env cli.Env, args []string) error {
			return check(env, sections, args)
		}},
		{Name: "print", Short: "print a section with defaults, file, environment and flags applied", Usage: "SECTION [--config FILE] [flags]",
			Run: func(_ context.Context, env cli.Env, args []string) error { return printSection(env, sections, args) }},
	}}
}

func check(env cli.Env, sections map[string]func() any, args []string) error {
	fs := pflag.NewFlagSet("config check", pflag.ContinueOnError)
	if err := cli.ParseFlags(env, fs, "FILE", args); err != nil {
		return err
	}
	if fs.NArg() != 1 {
		return cli.Usagef("want one file")
	}
	data, err := os.ReadFile(fs.Arg(0))
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	names, err := sectionsOf(data)
	if err != nil {
		return fmt.Errorf("configuration %s: %w", fs.Arg(0), err)
	}
	for _, name := range names {
		section := sections[name]()
		l := New(name, section)
		l.file = fs.Arg(0)
		if err := l.Load(env.Getenv); err != nil {
			return err
		}
		if f, ok := section.(FileChecker); ok {
			if err := f.CheckFiles(); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		fmt.Fprintf(env.Stdout, "%s: ok\n", name)
	}
	return nil
}

func printSection(env cli.Env, sections map[string]func() any, args []string) error {
	if len(args) > 0 && (args[0] == "--help" || args[0] == "-h") {
		return cli.ParseFlags(env, pflag.NewFlagSet("config print", pflag.ContinueOnError), "SECTION [--config FILE] [flags]", args)
	}
	if len(args) == 0 || sections[args[0]] == nil {
		return cli.Usagef("want a section: cloud, worker or edge")
	}
	l := New(args[0], sections[args[0]]())
	fs := pflag.NewFlagSet("config print "+args[0], pflag.ContinueOnError)
	l.Flags(fs)
	if err := cli.ParseFlags(env, fs, "[--config FILE] [flags]", args[1:]); err != nil {
		return err
	}
	if err := l.Load(env.Getenv); err != nil {
		return err
	}
	return l.Print(env.Stdout)
}
