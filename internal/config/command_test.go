package config

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
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

// filed is a section that names a file.
type filed struct {
	Path string `yaml:"path"`
}

func (f *filed) CheckFiles() error {
	_, err := os.Stat(f.Path)
	return err
}

// TestCheckReadsFiles: check fails where a section's files are not what they
// should be.
func TestCheckReadsFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "weir.yaml")
	for path, ok := range map[string]bool{file: true, file + ".absent": false} {
		if err := os.WriteFile(file, []byte("cloud:\n  path: "+path+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		env := cli.Env{Stdout: &out, Stderr: &out, Getenv: func(string) string { return "" }}
		err := check(env, map[string]func() any{"cloud": func() any { return new(filed) }}, []string{file})
		if (err == nil) != ok || !ok && !strings.HasPrefix(err.Error(), "cloud: ") {
			t.Errorf("%s: %v, printed %q", path, err, out.String())
		}
	}
}
