package pgcluster

import (
	"context"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/weirhq/weir/internal/cli"
	"github.com/weirhq/weir/internal/proc"
)

// GuardCommand is "weir postgres-guard", which Weir starts itself: it runs
// postgres and stops it at SIGTERM, SIGINT or the end of its parent.
func GuardCommand() cli.Command {
	return cli.Command{
		Name: "postgres-guard", Short: "run a private PostgreSQL for as long as the parent lives",
		Usage: "--postgres FILE --data DIR --socket-dir DIR", Hidden: true, Run: runGuard,
	}
}

func runGuard(ctx context.Context, env cli.Env, args []string) error {
	s := server{out: env.Stderr, leftover: leftoverWait}
	fs := pflag.NewFlagSet("postgres-guard", pflag.ContinueOnError)
	fs.StringVar(&s.postgres, "postgres", "", "the postgres program")
	fs.StringVar(&s.data, "data", "", "the cluster")
	fs.StringVar(&s.socketDir, "socket-dir", "", "folder of the Unix socket")
	uid := fs.Uint32("uid", 0, "user to run postgres as")
	gid := fs.Uint32("gid", 0, "group to run postgres as")
	fs.StringArrayVar(&s.settings, "set", nil, "server setting, name=value")
	if err := cli.ParseFlags(env, fs, "--postgres FILE --data DIR --socket-dir DIR", args); err != nil {
		return err
	}
	if s.postgres == "" || s.data == "" || s.socketDir == "" || fs.NArg() > 0 {
		return cli.Usagef("want --postgres, --data and --socket-dir")
	}
	if *uid != 0 {
		s.cred = &syscall.Credential{Uid: *uid, Gid: *gid}
	}
	ctx, stop := proc.Main(ctx)
	defer stop()
	return s.run(ctx)
}
