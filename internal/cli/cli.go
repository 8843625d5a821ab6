// Package cli is the frame of the weir command line: a table of commands,
// strict flags, one line per error and fixed exit codes.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// Env is what a command may use of the process it runs in.
type Env struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string
}

// Command is one entry of a command table. It has either Run or Sub.
type Command struct {
	Name  string // one word, e.g. "up"
	Short string // one line for the list of commands
	Usage string // arguments after the name, e.g. "[flags] PROMPT"
	Run   func(ctx context.Context, env Env, args []string) error
	Sub   []Command
	// Hidden commands run but are not listed: Weir starts them itself.
	Hidden bool
}

// UsageError is a mistake in the command line. It exits with 2.
type UsageError struct{ Msg string }

func (e UsageError) Error() string { return e.Msg }

// Usagef makes a UsageError.
func Usagef(format string, a ...any) error { return UsageError{fmt.Sprintf(format, a...)} }

// ErrHelp says that help was printed and the command is done.
var ErrHelp = errors.New("help requested")

// Exit codes of the weir binary.
const (
	ExitOK    = 0
	ExitError = 1
	ExitUsage = 2
)

// ParseFlags parses args into fs. On --help it prints usage and the flags to
// env.Stdout and returns ErrHelp, which Main treats as success. A bad flag is
// a UsageError.
func ParseFlags(env Env, fs *pflag.FlagSet, usage string, args []string) error {
	fs.SetOutput(io.Discard)
	fs.SortFlags = false
	fs.Usage = func() {}
	err := fs.Parse(args)
	if errors.Is(err, pflag.ErrHelp) {
		fmt.Fprintf(env.Stdout, "Usage: weir %s %s\n\n%s", fs.Name(), usage, fs.FlagUsages())
		return ErrHelp
	}
	if err != nil {
		return Usagef("%s: see 'weir %s --help'", err, fs.Name())
	}
	return nil
}

// Main runs the command that args name and returns the exit code.
func Main(ctx context.Context, env Env, table []Command, args []string) int {
	err := run(ctx, env, "weir", table, args)
	var usage UsageError
	switch {
	case err == nil, errors.Is(err, ErrHelp):
		return ExitOK
	case errors.As(err, &usage):
		fmt.Fprintln(env.Stderr, oneLine(err))
		return ExitUsage
	default:
		fmt.Fprintln(env.Stderr, oneLine(err))
		return ExitError
	}
}

func run(ctx context.Context, env Env, prefix string, table []Command, args []string) error {
	if len(args) == 0 {
		printTable(env.Stderr, prefix, table)
		return UsageError{prefix + ": a command is missing"}
	}
	if slices.Contains([]string{"help", "-h", "--help"}, args[0]) {
		if args[0] == "help" && len(args) > 1 {
			return run(ctx, env, prefix, table, append(slices.Clone(args[1:]), "--help"))
		}
		printTable(env.Stdout, prefix, table)
		return nil
	}
	i := slices.IndexFunc(table, func(c Command) bool { return c.Name == args[0] })
	if i < 0 {
		return UsageError{fmt.Sprintf("%s: unknown command %q: see '%s help'", prefix, args[0], prefix)}
	}
	c := table[i]
	name := prefix + " " + c.Name
	if c.Sub != nil {
		return run(ctx, env, name, c.Sub, args[1:])
	}
	if err := c.Run(ctx, env, args[1:]); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func printTable(w io.Writer, prefix string, table []Command) {
	fmt.Fprintf(w, "Usage: %s COMMAND [flags]\n\nCommands:\n", prefix)
	for _, c := range table {
		if !c.Hidden {
			fmt.Fprintf(w, "  %-12s %s\n", c.Name, c.Short)
		}
	}
	fmt.Fprintf(w, "\n'%s COMMAND --help' explains one.\n", prefix)
}

func oneLine(err error) string {
	return strings.Join(strings.Fields(err.Error()), " ")
}
