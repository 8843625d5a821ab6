package pgcluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/weirhq/weir/internal/proc"
)

const (
	// Role and database of Weir inside its private cluster.
	roleName = "weir"
	dbName   = "weir"
)

// Options says where a cluster is and how it runs.
type Options struct {
	Dir    string    // Weir's data directory
	BinDir string    // folder of the server's binaries; "": find them
	Guard  []string  // command line of GuardCommand, e.g. {"/usr/bin/weir", "postgres-guard"}
	Output io.Writer // the server's log; nil: discarded
	// Settings are added to Weir's own, as "name=value".
	Settings []string

	elsewhere []string // for tests
}

// Cluster is a cluster that exists on disk. Start runs it.
type Cluster struct {
	opts Options
	bin  Binaries
	home string
	cred *syscall.Credential
	tail *tail
}

// Open finds the server and makes the cluster unless it is there. Its errors
// are one line each and say what to do. It may take some seconds the first time.
func Open(ctx context.Context, o Options) (*Cluster, error) {
	c, err := open(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("private PostgreSQL: %w", err)
	}
	return c, nil
}

func open(ctx context.Context, o Options) (*Cluster, error) {
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, err
	}
	mode := fs.FileMode(0o700)
	if os.Geteuid() == 0 {
		mode = 0o711 // the cluster's user passes through
	}
	if err := os.MkdirAll(dir, mode); err != nil {
		return nil, err
	}
	if o.elsewhere == nil {
		o.elsewhere = elsewhere()
	}
	cred, err := unprivileged(dir)
	if err != nil {
		return nil, err
	}
	bin, err := FindBinaries(ctx, o.BinDir, 0)
	if err != nil {
		return nil, err
	}
	home, err := place{dir: dir, cred: cred, elsewhere: o.elsewhere, probe: probe(ctx, bin, cred)}.find()
	if err != nil {
		return nil, err
	}
	c := &Cluster{opts: o, bin: bin, home: home, cred: cred, tail: &tail{out: o.Output}}
	return c, c.prepare(ctx)
}

// Home returns the cluster's folder, which may lie outside of Options.Dir.
func (c *Cluster) Home() string { return c.home }

// URL returns the connection string of Weir's database. It holds no secret:
// the socket's folder is open to its owner only.
func (c *Cluster) URL() string { return c.url(dbName) }

func (c *Cluster) url(db string) string {
	// The port stands here because PGPORT in the environment would replace it.
	q := url.Values{"host": {c.socketDir()}, "port": {"5432"}, "user": {roleName}}
	return "postgres:///" + db + "?" + q.Encode()
}

func (c *Cluster) data() string { return filepath.Join(c.home, "data") }

// maxSocketDir keeps the socket's path within the 104 bytes of macOS.
const maxSocketDir = 104 - len("/.s.PGSQL.5432.lock") - 1

// socketDir is short enough for a socket, at the price of a link in the
// system's folder for temporary files when the home is deep.
func (c *Cluster) socketDir() string {
	d := filepath.Join(c.home, "run")
	if len(d) <= maxSocketDir {
		return d
	}
	return shortDir(c.home)
}

func (c *Cluster) prepare(ctx context.Context) error {
	p := place{cred: c.cred}
	for _, d := range []string{filepath.Join(c.home, "run"), c.socketDir()} {
		if err := p.own(d); err != nil {
			return fmt.Errorf("socket folder: %w", err)
		}
	}
	if err := checkOwner(c.socketDir(), c.cred); err != nil {
		return err
	}
	b, err := os.ReadFile(filepath.Join(c.data(), "PG_VERSION"))
	if errors.Is(err, fs.ErrNotExist) {
		return c.initdb(ctx)
	}
	if err != nil {
		return err
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return fmt.Errorf("%s is damaged: PG_VERSION holds %.20q", c.data(), b)
	}
	if major == c.bin.Major {
		return nil
	}
	if c.bin, err = FindBinaries(ctx, c.opts.BinDir, major); err != nil {
		return fmt.Errorf("%s was made by version %d: %w", c.data(), major, err)
	}
	return nil
}

// initdb makes the cluster beside its place and renames it there, so that a
// crash or a full disk never leaves half a cluster that looks whole.
func (c *Cluster) initdb(ctx context.Context) error {
	if entries, err := os.ReadDir(c.data()); err == nil && len(entries) > 0 {
		return fmt.Errorf("%s is not a PostgreSQL cluster (no PG_VERSION): restore or remove it", c.data())
	}
	fresh := filepath.Join(c.home, "data.new")
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	_, err := runAs(ctx, c.cred, c.home, c.bin.path("initdb"),
		"--pgdata", fresh, "--username", roleName, "--auth", "trust", // the socket's folder guards it
		"--encoding", "UTF8", "--locale", "C", "--data-checksums")
	if err != nil {
		_ = os.RemoveAll(fresh)
		return fmt.Errorf("make cluster in %s: %w", c.home, err)
	}
	if err := os.Rename(fresh, c.data()); err != nil {
		return fmt.Errorf("make cluster: %w", err)
	}
	return nil
}

// Guard returns the child process that serves the cluster. Run it under a
// proc.Supervisor, or let Start do so once.
func (c *Cluster) Guard() proc.Spec {
	s := c.server()
	args := append([]string{}, c.opts.Guard[1:]...)
	args = append(args, "--postgres", s.postgres, "--data", s.data, "--socket-dir", s.socketDir)
	if s.cred != nil {
		args = append(args, "--uid", strconv.Itoa(int(s.cred.Uid)), "--gid", strconv.Itoa(int(s.cred.Gid)))
	}
	for _, kv := range c.opts.Settings {
		args = append(args, "--set", kv)
	}
	return proc.Spec{Name: "postgres", Path: c.opts.Guard[0], Args: args, Dir: "/", Output: c.tail}
}

func (c *Cluster) server() server {
	return server{
		postgres: c.bin.path("postgres"), data: c.data(), socketDir: c.socketDir(),
		cred: c.cred, settings: c.opts.Settings, out: c.tail, leftover: leftoverWait,
	}
}
