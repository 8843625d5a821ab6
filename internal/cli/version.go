package cli

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
)

// VersionCommand is "weir version": which build this is.
func VersionCommand() Command {
	return Command{Name: "version", Short: "say which build this is",
		Run: func(_ context.Context, env Env, args []string) error {
			switch {
			case len(args) == 0:
				fmt.Fprintln(env.Stdout, version())
			case args[0] == "--help" || args[0] == "-h":
				fmt.Fprintln(env.Stdout, "Usage: weir version")
			default:
				return Usagef("%q: version takes no arguments", args[0])
			}
			return nil
		}}
}

func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "weir unknown " + runtime.Version()
	}
	parts := []string{"weir", info.Main.Version, info.GoVersion, runtime.GOOS + "/" + runtime.GOARCH}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			parts = append(parts, s.Value)
		case "vcs.modified":
			if s.Value == "true" {
				parts = append(parts, "modified")
			}
		case "GOEXPERIMENT":
			parts = append(parts, s.Value)
		}
	}
	return strings.Join(parts, " ")
}
