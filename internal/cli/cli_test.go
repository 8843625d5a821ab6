package cli

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestCommandLine(t *testing.T) {
	leaf := func(name string) Command {
		return Command{Name: name, Short: name + " things", Run: func(_ context.Context, env Env, args []string) error {
			fs := pflag.NewFlagSet(name, pflag.ContinueOnError)
			fs.Bool("hard", false, "harder")
			return ParseFlags(env, fs, "[flags]", args)
		}}
	}
	table := []Command{leaf("turn"), {Name: "more", Short: "more things", Sub: []Command{leaf("bend")}}, VersionCommand()}
	tests := []struct {
		args string
		code int
		want string // on standard output, or on the other where code is not 0
	}{
		{"help", 0, "turn things"},
		{"--help", 0, "more things"},
		{"help turn", 0, "Usage: weir turn [flags]"},
		{"turn --help", 0, "harder"},
		{"help more", 0, "bend things"},
		{"help more bend", 0, "Usage: weir bend"},
		{"more help bend", 0, "Usage: weir bend"},
		{"help nope", 2, `unknown command "nope"`},
		{"nope", 2, "see 'weir help'"},
		{"more", 2, "a command is missing"},
		{"turn --soft", 2, "unknown flag: --soft"},
		{"version", 0, "weir "},
		{"help version", 0, "Usage: weir version"},
		{"version 2", 2, "takes no arguments"},
		{"turn --hard", 0, ""},
	}
	for _, tt := range tests {
		var out, errs bytes.Buffer
		code := Main(t.Context(), Env{Stdout: &out, Stderr: &errs}, table, strings.Fields(tt.args))
		got := out.String()
		if code != 0 {
			got = errs.String()
		}
		if code != tt.code || !strings.Contains(got, tt.want) {
			t.Errorf("weir %s: exit %d, %q; want %d with %q", tt.args, code, got, tt.code, tt.want)
		}
	}
}
