package install

import (
	"context"
	"fmt"

	"github.com/spf13/pflag"
	"github.com/weirhq/weir/engine/llama"
	"github.com/weirhq/weir/internal/cli"
)

// Command is 'weir engine': it installs, finds and checks llama.cpp.
func Command() cli.Command {
	return cli.Command{
		Name: "engine", Short: "install and check the inference libraries (llama.cpp)",
		Sub: []cli.Command{
			{Name: "install", Short: "fetch the pinned libraries with npm", Usage: "[flags]", Run: runInstall},
			{Name: "path", Short: "print the library folder in use", Usage: "[flags]", Run: runPath},
			{Name: "check", Short: "load the libraries and print their version", Usage: "[flags]", Run: runCheck},
		},
	}
}

func runInstall(ctx context.Context, env cli.Env, args []string) error {
	fs := pflag.NewFlagSet("engine install", pflag.ContinueOnError)
	dir := fs.String("lib", "", "library folder (default: WEIR_LIB, /var/lib/weir/lib for root, or weir/lib in XDG_DATA_HOME)")
	variant := fs.String("variant", "", "cpu, cuda, vulkan or metal (default: the platform's plain one)")
	if err := parse(env, fs, args); err != nil {
		return err
	}
	if *dir == "" {
		*dir = llama.DefaultLibraryDir(env.Getenv)
	}
	stamp, err := Install(ctx, Options{Dir: *dir, Variant: *variant, Progress: func(line string) { fmt.Fprintln(env.Stderr, line) }})
	if err != nil {
		return err
	}
	fmt.Fprintf(env.Stdout, "%s %s in %s\n", stamp.Package, stamp.Version, *dir)
	return nil
}

func runPath(_ context.Context, env cli.Env, args []string) error {
	dir, err := find(env, "engine path", args)
	if err != nil {
		return err
	}
	fmt.Fprintln(env.Stdout, dir)
	return nil
}

func runCheck(_ context.Context, env cli.Env, args []string) error {
	dir, err := find(env, "engine check", args)
	if err != nil {
		return err
	}
	version, err := llama.LoadLibrary(dir)
	if err != nil {
		return err
	}
	fmt.Fprintf(env.Stdout, "llama.cpp %s in %s works\n", version, dir)
	return nil
}

// find parses the flags of a command that only reads, and finds the folder.
func find(env cli.Env, name string, args []string) (string, error) {
	fs := pflag.NewFlagSet(name, pflag.ContinueOnError)
	lib := fs.String("lib", "", "library folder (default: WEIR_LIB, lib beside the binary's folder, the install folder)")
	if err := parse(env, fs, args); err != nil {
		return "", err
	}
	return llama.FindLibrary(*lib, env.Getenv)
}

func parse(env cli.Env, fs *pflag.FlagSet, args []string) error {
	if err := cli.ParseFlags(env, fs, "[flags]", args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return cli.Usagef("unexpected argument %q: see 'weir %s --help'", fs.Arg(0), fs.Name())
	}
	return nil
}
