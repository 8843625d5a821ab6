// Command weir serves language models across edge and cloud. It is one binary
// with one command per role; see docs/architecture.md.
package main

import (
	"context"
	"os"

	"github.com/weirhq/weir/cascade/replay"
	"github.com/weirhq/weir/cloud"
	"github.com/weirhq/weir/cloud/overhead"
	"github.com/weirhq/weir/cloud/tenantbench"
	"github.com/weirhq/weir/edge"
	"github.com/weirhq/weir/edge/edgebench"
	"github.com/weirhq/weir/engine/enginebench"
	"github.com/weirhq/weir/engine/fake"
	"github.com/weirhq/weir/engine/gguf/random"
	"github.com/weirhq/weir/engine/install"
	moeval "github.com/weirhq/weir/engine/moe/evaluate"
	"github.com/weirhq/weir/engine/worker"
	"github.com/weirhq/weir/engine/worker/poolbench"
	"github.com/weirhq/weir/experts"
	"github.com/weirhq/weir/internal/admincli"
	"github.com/weirhq/weir/internal/bench"
	"github.com/weirhq/weir/internal/chat"
	"github.com/weirhq/weir/internal/cli"
	"github.com/weirhq/weir/internal/config"
	"github.com/weirhq/weir/internal/demo"
	"github.com/weirhq/weir/internal/evaluate"
	"github.com/weirhq/weir/internal/pgcluster"
	"github.com/weirhq/weir/internal/pki"
	"github.com/weirhq/weir/internal/up"
)

// sections are the parts of a configuration file, for "weir config".
var sections = map[string]func() any{
	"cloud":  func() any { return new(cloud.Config) },
	"worker": func() any { return new(worker.Config) },
	"edge":   func() any { return new(edge.Config) },
}

// suites are the parts of "weir bench", in the order of their bars.
func suites() []bench.Suite {
	return []bench.Suite{
		enginebench.Suite(),
		poolbench.Suite(),
		moeval.Suite(),
		overhead.Suite(),
		tenantbench.Suite(),
		replay.BenchSuite(),
		edgebench.Suite(),
		experts.BenchSuite(),
	}
}

func commands() []cli.Command {
	return append([]cli.Command{
		up.Command(),
		chat.Command(),
		evaluate.Command(),
		cloud.Command(),
		edge.Command(),
		worker.Command(),
		install.Command(),
		fake.Command(),
		random.Command(),
		demo.Command(),
		replay.Command(),
		experts.Command(append(moeval.Commands(), admincli.ExpertsCommands()...)...),
		config.Command(sections),
		bench.Command(suites()),
		admincli.PoolsCommand(),
		pki.PKICommand(),
		cli.VersionCommand(),
		pgcluster.GuardCommand(),
	}, admincli.Commands()...)
}

func main() {
	env := cli.Env{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv}
	os.Exit(cli.Main(context.Background(), env, commands(), os.Args[1:]))
}
