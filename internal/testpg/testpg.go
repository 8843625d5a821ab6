// Package testpg gives tests a real PostgreSQL: one private cluster per test
// binary and a fresh, migrated database per test. A test binary that uses it
// says so in its TestMain:
//
//	func TestMain(m *testing.M) { os.Exit(testpg.Run(m)) }
//
// A machine without a server fails the tests, and the message says what to
// install: skipped tests prove nothing.
package testpg

import (
	"bytes"
	"context"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirhq/weir/internal/pgcluster"
	"github.com/weirhq/weir/migrations"
)

// Durability is of no use to a database that is thrown away.
var testSettings = []string{"fsync=off", "synchronous_commit=off", "full_page_writes=off", "max_connections=200"}

const startLimit = 90 * time.Second

// shared is the cluster of this test binary.
var shared struct {
	running atomic.Bool // between Run's start and end
	once    sync.Once
	server  *Server
	err     error
	serial  atomic.Int64
	// create guards the template, which only one session may copy at a time.
	create sync.Mutex
}

// Run runs the tests and then removes the cluster, if any test has used it.
// It returns the exit code.
func Run(m *testing.M) int {
	shared.running.Store(true)
	code := m.Run()
	if shared.server != nil {
		shared.server.remove()
	}
	return code
}

// Start returns the URL of a fresh database with Weir's schema. It is dropped
// with the binary's cluster.
func Start(t testing.TB) string {
	t.Helper()
	return newDatabase(t, "weir_template")
}

// Empty returns the URL of a fresh database without any schema.
func Empty(t testing.TB) string {
	t.Helper()
	return newDatabase(t, "template1")
}

func newDatabase(t testing.TB, template string) string {
	t.Helper()
	if !shared.running.Load() {
		t.Fatal("testpg: call testpg.Run from TestMain")
	}
	shared.once.Do(func() { shared.server, shared.err = startShared() })
	if shared.err != nil {
		t.Fatalf("testpg: %v", shared.err)
	}
	name := fmt.Sprintf("test_%d", shared.server.serial())
	shared.create.Lock()
	defer shared.create.Unlock()
	if err := shared.server.admin(fmt.Sprintf(`create database %s template %s`, name, template)); err != nil {
		t.Fatalf("testpg: %v", err)
	}
	return shared.server.database(name)
}

func startShared() (*Server, error) {
	s, err := newServer()
	if err != nil {
		return nil, err
	}
	if err = s.admin(`create database weir_template`); err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), startLimit)
		defer cancel()
		err = migrations.Up(ctx, s.database("weir_template"))
	}
	if err != nil {
		s.remove()
		return nil, err
	}
	return s, nil
}

// Server is a cluster of a test's own, which it may stop and start to play an
// outage.
type Server struct {
	cluster *pgcluster.Cluster
	dir     string
	log     *syncBuffer

	mu   sync.Mutex
	stop context.CancelFunc // nil while stopped
	done chan error
}

// NewServer starts a cluster for one test, with an empty database, and removes
// it at the test's end.
func NewServer(t testing.TB) *Server {
	t.Helper()
	s, err := newServer()
	if err != nil {
		t.Fatalf("testpg: %v", err)
	}
	t.Cleanup(s.remove)
	return s
}

func newServer() (*Server, error) {
	// Not t.TempDir: under root it is closed to the user that runs Postgres.
	dir, err := os.MkdirTemp("/tmp", "weir-testpg-")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	s := &Server{dir: dir, log: new(syncBuffer)}
	s.cluster, err = pgcluster.Open(ctx, pgcluster.Options{Dir: dir, Output: s.log, Settings: testSettings})
	if err == nil {
		err = s.start(ctx)
	}
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	return s, nil
}

// URL returns the connection string of the server's database.
func (s *Server) URL() string { return s.cluster.URL() }

// Start runs the server again after Stop.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	if err := s.start(ctx); err != nil {
		t.Fatalf("testpg: %v", err)
	}
}

func (s *Server) start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop != nil {
		return nil
	}
	run, stop := context.WithCancel(context.Background())
	done, ended := make(chan error, 1), make(chan struct{})
	go func() {
		done <- s.cluster.Serve(run)
		close(ended)
	}()
	if err := s.cluster.WaitReady(ctx, ended); err != nil {
		stop()
		<-done
		return err
	}
	s.stop, s.done = stop, done
	return nil
}

// Stop ends the server, as an outage does: clients are cut off.
func (s *Server) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop == nil {
		return
	}
	s.stop()
	<-s.done
	s.stop = nil
}

// Log returns what the server has written so far.
func (s *Server) Log() string { return s.log.String() }

func (s *Server) remove() {
	s.Resume()
	s.Stop()
	_ = os.RemoveAll(s.dir)
}

func (s *Server) serial() int64 { return shared.serial.Add(1) }

func (s *Server) database(name string) string {
	u, err := url.Parse(s.cluster.URL())
	if err != nil { // pgcluster has made it
		panic(err)
	}
	u.Path = "/" + name
	return u.String()
}

func (s *Server) admin(sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.database("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, sql)
	return err
}

// syncBuffer is a log that a test may read while the server writes it.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Clone(s.b.String())
}
