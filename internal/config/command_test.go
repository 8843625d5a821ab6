package config

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/weirhq/weir/internal/cli"
)

// Every subcommand explains itself, also where it takes a section first.
func TestCommandHelp(t *testing.T) {
	c := Command(map[string]func() any{"cloud": func() any { return new(struct{}) }})
	for _, args := range [][]string{{"check", "--help"}, {"print", "--help"}, {"print", "cloud", "--help"}} {
		var out bytes.Buffer
		env := cli.Env{Stdout: &out, Stderr: &out, Getenv: func(string) string { return "" }}
		for _, sub := range c.Sub {
			if sub.Name != args[0] {
				continue
			}
			if err := sub.Run(t.Context(), env, args[1:]); !errors.Is(err, cli.ErrHelp) || !strings.Contains(out.String(), "Usage: weir config "+args[0]) {
				t.Errorf("%v: %v, printed %q", args, err, out.String())
			}
		}
	}
}
