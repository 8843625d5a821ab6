package admincli

import (
	"context"
	"net/http"
	"time"

	"github.com/spf13/pflag"

	"github.com/weirhq/weir/internal/cli"
)

const answersUsage = "[--since 168h] [--model NAME] [flags]"

// runAnswers prints the scored answers of equal pools as CSV, as `weir cascade eval
// --answers` reads them.
func runAnswers(ctx context.Context, env cli.Env, args []string) error {
	fs := pflag.NewFlagSet("pools answers", pflag.ContinueOnError)
	v := verb{method: http.MethodGet, path: "answers.csv", query: append([]field{{"model", "of one model only", text}}, period...)}
	for _, f := range v.query {
		f.define(fs)
	}
	var to target
	to.define(fs)
	since := fs.Duration("since", 7*24*time.Hour, "those of so long a time up to now; --from and --to name a period instead")
	if err := cli.ParseFlags(env, fs, answersUsage, args); err != nil {
		return err
	}
	if *since <= 0 {
		return cli.Usagef("--since is %s, want a time above 0", *since)
	}
	if from := fs.Lookup("from"); !from.Changed {
		_ = fs.Set("from", time.Now().Add(-*since).UTC().Format(time.RFC3339)) // a string always parses
	} else if fs.Lookup("since").Changed {
		return cli.Usagef("--since and --from name two beginnings: give one")
	}
	path, err := v.fill(fs)
	if err != nil {
		return err
	}
	return to.stream(ctx, env, v.method, path, nil, env.Stdout)
}
