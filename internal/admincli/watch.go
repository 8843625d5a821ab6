package admincli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/spf13/pflag"

	"github.com/weirhq/weir/internal/cli"
)

// statusUsage is that of every command made by shows.
const statusUsage = "[--watch] [flags]"

// shows makes a command that prints the answer at a path, again and again with
// --watch.
func shows(name, path string, show func(io.Writer, []byte) error) func(context.Context, cli.Env, []string) error {
	return func(ctx context.Context, env cli.Env, args []string) error {
		fs := pflag.NewFlagSet(name, pflag.ContinueOnError)
		var to target
		to.define(fs)
		watch := fs.Bool("watch", false, "repeat until Ctrl-C")
		every := fs.Duration("every", 2*time.Second, "time between two looks with --watch")
		asJSON := fs.Bool("json", false, "print the answer as JSON")
		if err := cli.ParseFlags(env, fs, statusUsage, args); err != nil {
			return err
		}
		if fs.NArg() > 0 || *every <= 0 {
			return cli.Usagef("%s takes flags only, and --every a time above 0", name)
		}
		print := show
		if *asJSON {
			print = printJSON
		}
		look := func() error {
			answer, err := to.call(ctx, env, http.MethodGet, path, nil)
			if err != nil {
				return err
			}
			return print(env.Stdout, answer)
		}
		if err := look(); err != nil || !*watch {
			return err
		}
		watchOn(ctx, env.Stdout, *every, look)
		return nil
	}
}

// watchOn looks again and again until ctx ends. A gateway that does not answer for
// a while is what one watches for.
func watchOn(ctx context.Context, out io.Writer, every time.Duration, look func() error) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(every):
		}
		fmt.Fprintf(out, "\n-- %s\n", time.Now().Format(time.TimeOnly))
		if err := look(); err != nil && ctx.Err() == nil {
			fmt.Fprintln(out, err)
		}
	}
}
