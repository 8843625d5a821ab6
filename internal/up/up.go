// Package up is the command "weir up": a supervisor that runs the whole system
// on one machine, each role as its own child process, exactly as they run in
// production. It holds no part of any role: it writes their configuration
// files, starts them in order, restarts the ones that die and stops them.
package up

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/llama"
	"github.com/weirhq/weir/engine/worker"
	"github.com/weirhq/weir/internal/cli"
	"github.com/weirhq/weir/internal/client"
	"github.com/weirhq/weir/internal/proc"
)

const usage = "[--data DIR] [--listen-base PORT] [--ready-file F]"

// ReadyName is the ready file that weir up always writes in its data
// directory, where weir chat and weir eval look for it.
const ReadyName = "ready.json"

// startLimit is the longest a start may take.
const startLimit = 90 * time.Second

// Command is "weir up".
func Command() cli.Command {
	return cli.Command{Name: "up", Short: "run the whole system on this machine", Usage: usage, Run: run}
}

type options struct {
	readyFile   string
	lib         string
	runner      string // of the cloud workers, see weir worker --runner
	databaseURL string // your own Postgres; "" starts a private cluster
	verbose     bool
}

func run(ctx context.Context, env cli.Env, args []string) error {
	var o options
	fs := pflag.NewFlagSet("up", pflag.ContinueOnError)
	data := fs.String("data", "", "folder for all state (default $XDG_DATA_HOME/weir, as root /var/lib/weir)")
	base := fs.Int("listen-base", DefaultBase, "first of 16 ports on 127.0.0.1")
	fs.StringVar(&o.readyFile, "ready-file", "", "write the URLs and keys there (mode 0600) once all is ready")
	fs.StringVar(&o.lib, "lib", "", "folder of llama.cpp's libraries (default: where 'weir engine install' puts them)")
	fs.StringVar(&o.runner, "runner", "auto", "what computes hub-cloud on both cloud workers: auto, llama or moe")
	urlFile := fs.String("database-url-file", "", "file with the URL of your own Postgres (or WEIR_DATABASE_URL); default: a private cluster")
	fs.BoolVarP(&o.verbose, "verbose", "v", false, "log the supervisor's own steps")
	if err := cli.ParseFlags(env, fs, usage, args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return cli.Usagef("up takes no arguments, got %q", fs.Arg(0))
	}
	if !slices.Contains(worker.Runners, o.runner) {
		return cli.Usagef("--runner: %q is not one of %s", o.runner, strings.Join(worker.Runners, ", "))
	}
	if *data == "" {
		dir, err := DefaultData(env.Getenv)
		if err != nil {
			return err
		}
		*data = dir
	}
	abs, err := filepath.Abs(*data)
	if err != nil {
		return fmt.Errorf("--data: %w", err)
	}
	if o.databaseURL, err = ownDatabase(env, *urlFile); err != nil {
		return err
	}
	ctx, stop := proc.Main(ctx)
	defer stop()
	s := &supervisor{layout: layout{data: abs, base: *base}, options: o, env: env, log: newLog(env.Stderr, o.verbose)}
	return s.run(ctx)
}

func ownDatabase(env cli.Env, file string) (string, error) {
	if file == "" {
		return env.Getenv("WEIR_DATABASE_URL"), nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("--database-url-file: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

type supervisor struct {
	layout
	options
	env      cli.Env
	log      *slog.Logger
	children []*child // in the order of their start
	began    time.Time
}

// run starts everything, waits for the end of ctx and stops everything.
func (s *supervisor) run(ctx context.Context) error {
	s.began = time.Now()
	if err := s.makeDirs(); err != nil {
		return err
	}
	unlock, err := lock(s.path("lock"))
	if err != nil {
		return err
	}
	defer unlock()
	defer os.Remove(s.path(ReadyName))
	defer s.stopAll()
	starting, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("not ready after %s", startLimit))
	ready, err := s.startAll(starting)
	cancel()
	if ctx.Err() != nil {
		s.say("stopping")
		return nil
	}
	if err != nil {
		return err
	}
	if err := s.publish(ready); err != nil {
		return err
	}
	<-ctx.Done()
	s.say("stopping")
	return nil
}

func (s *supervisor) say(format string, a ...any) {
	fmt.Fprintf(s.env.Stdout, format+"\n", a...)
}

func (s *supervisor) step(format string, a ...any) {
	fmt.Fprintf(s.env.Stdout, "%6.1fs  %s\n", time.Since(s.began).Seconds(), fmt.Sprintf(format, a...))
}

// startAll brings the system up layer by layer. Workers load their model while
// the database and the cloud start.
func (s *supervisor) startAll(ctx context.Context) (client.Ready, error) {
	var none client.Ready
	if err := s.checkPorts(); err != nil {
		return none, err
	}
	libDir, err := llama.FindLibrary(s.lib, s.env.Getenv)
	if err != nil {
		return none, err
	}
	if err := s.issueCertificates(); err != nil {
		return none, err
	}
	if err := s.writeConfigs(libDir, s.runner); err != nil {
		return none, err
	}
	s.step("data in %s, %d thread(s) for each of %d runners", s.data, threads(), runners)
	databaseURL, err := s.startPostgres(ctx)
	if err != nil {
		return none, err
	}
	workers := map[string]*child{}
	for _, name := range []string{prefillName, decodeName} {
		if workers[name], err = s.launch(name, nil, "worker", "--config", s.config(name)); err != nil {
			return none, err
		}
	}
	cloud, err := s.launch("cloud", []string{"WEIR_CLOUD_DATABASE_URL=" + databaseURL, "WEIR_DATABASE_URL="}, "cloud", "--config", s.config("cloud"))
	if err != nil {
		return none, err
	}
	for name, port := range map[string]int{prefillName: portPrefill, decodeName: portDecode} {
		var runner string
		if err := workers[name].waitReady(ctx, s.url(port)+"/health", tellsRunner(&runner)); err != nil {
			return none, err
		}
		s.step("worker %s serves %s on %s, computed by %s", name, cloudModel, s.addr(port), runner)
	}
	if err := cloud.waitReady(ctx, s.url(portCloudOps)+"/readyz", seesAllInstances); err != nil {
		return none, err
	}
	s.step("cloud on %s, TLS and HTTP/3 on %s", s.addr(portCloud), s.addr(portCloudTLS))
	ready := client.Ready{EdgeURL: s.url(portEdge), CloudURL: s.url(portCloud), CloudH3Addr: s.addr(portCloudTLS), DataDir: s.data}
	if err := s.ensureDemo(ctx, &ready); err != nil {
		return none, err
	}
	edge, err := s.launch("edge", nil, "edge", "run", "--config", s.config("edge"))
	if err != nil {
		return none, err
	}
	if err := edge.waitReady(ctx, s.url(portEdgeOps)+"/readyz", anyBody); err != nil {
		return none, err
	}
	s.step("edge node on %s serves %s", s.addr(portEdge), edgeModel)
	return ready, nil
}

// tellsRunner accepts a worker's /health and notes what computes its model.
func tellsRunner(name *string) func(body []byte) bool {
	return func(body []byte) bool {
		var h struct {
			Fingerprint engine.Fingerprint `json:"fingerprint"`
		}
		err := json.Unmarshal(body, &h)
		*name = h.Fingerprint.Runner
		return err == nil
	}
}

// seesAllInstances accepts the cloud's /readyz once its probes have found both
// workers: before that a request would be refused.
func seesAllInstances(body []byte) bool {
	var h struct {
		Instances int `json:"instances"`
		Ready     int `json:"instances_ready"`
	}
	return json.Unmarshal(body, &h) == nil && h.Instances > 0 && h.Ready == h.Instances
}

// stopAll stops the children in layers: the edge drains into the cloud, the
// cloud into the workers, and the database goes last.
func (s *supervisor) stopAll() {
	for _, layer := range [][]string{{"edge"}, {"cloud"}, {prefillName, decodeName}, {"postgres"}} {
		var wg sync.WaitGroup
		for _, c := range s.children {
			if slices.Contains(layer, c.sup.Spec.Name) {
				s.log.Info("stopping", "child", c.sup.Spec.Name)
				wg.Go(c.stop)
			}
		}
		wg.Wait()
	}
}

// lock makes sure that one supervisor owns a data directory.
func lock(path string) (func(), error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("another weir up uses %s: stop it, or give another --data", filepath.Dir(path))
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}
