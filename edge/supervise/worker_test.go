package supervise_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirhq/weir/edge/supervise"
	"github.com/weirhq/weir/internal/proc"
	"github.com/weirhq/weir/internal/testproc"
)

// TestMain lets this binary be the worker that the tests supervise: it says
// who it is, and on /hang it stops answering.
func TestMain(m *testing.M) {
	if addr := os.Getenv("SUPERVISE_TEST_LISTEN"); addr != "" {
		child(addr)
		return
	}
	testproc.VerifyMain(m)
}

func child(addr string) {
	ctx, stop := proc.Main(context.Background())
	defer stop()
	var hang = make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("/health", func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-hang:
			<-r.Context().Done()
		default:
			fmt.Fprintf(w, `{"status":"ok","name":%q,"epoch":"%d","model":"m"}`, os.Getenv("SUPERVISE_TEST_NAME"), os.Getpid())
		}
	})
	mux.HandleFunc("/hang", func(http.ResponseWriter, *http.Request) { close(hang) })
	srv := &http.Server{Addr: addr, Handler: mux}
	go func() { _ = srv.ListenAndServe() }()
	<-ctx.Done()
	_ = srv.Close()
}

type running struct {
	*supervise.Worker
	url string
}

func start(t *testing.T, change func(*supervise.Options)) *running {
	t.Helper()
	addr := testproc.FreeAddr(t)
	tr := &http.Transport{}
	opt := supervise.Options{
		URL: "http://" + addr, Name: "w", PollStart: 5 * time.Millisecond, PollReady: 10 * time.Millisecond, HangAfter: time.Minute,
		HTTPClient: &http.Client{Timeout: time.Minute, Transport: tr}, Log: slog.New(slog.DiscardHandler),
		Spec: proc.Spec{Name: "worker", Path: os.Args[0], Env: []string{"SUPERVISE_TEST_LISTEN=" + addr, "SUPERVISE_TEST_NAME=w"}},
	}
	if change != nil {
		change(&opt)
	}
	w := supervise.New(opt)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		tr.CloseIdleConnections()
		http.DefaultClient.CloseIdleConnections()
	})
	return &running{w, opt.URL}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// pid waits for a ready worker other than one, and returns the process id that
// it reports as its epoch.
func (r *running) pid(t *testing.T, other int) (pid int) {
	t.Helper()
	eventually(t, "a ready child", func() bool {
		h, ok := r.Health()
		if !ok {
			return false
		}
		pid, _ = strconv.Atoi(h.Epoch)
		return pid > 0 && pid != other
	})
	return pid
}

func TestRestartsAChildThatDies(t *testing.T) {
	w := start(t, nil)
	first := w.pid(t, 0)
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	w.pid(t, first)
}

func TestKillsAChildThatHangs(t *testing.T) {
	w := start(t, func(o *supervise.Options) { o.HTTPClient.Timeout, o.HangAfter = 2*time.Second, 3*time.Second })
	first := w.pid(t, 0)
	resp, err := http.Get(w.url + "/hang")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	eventually(t, "not ready", func() bool { return !w.Ready() })
	w.pid(t, first)
	if err := syscall.Kill(first, 0); err == nil {
		t.Error("the hung child still lives")
	}
}

// Another process that answers on the port is not our worker.
func TestForeignServerIsNotReady(t *testing.T) {
	checked := make(chan struct{}, 100)
	w := start(t, func(o *supervise.Options) {
		o.Spec.Env = append(o.Spec.Env, "SUPERVISE_TEST_NAME=other")
		o.Log = slog.New(slog.DiscardHandler)
		o.HTTPClient.Transport = counted{o.HTTPClient.Transport, checked}
	})
	for range 3 {
		select {
		case <-checked:
		case <-time.After(time.Minute):
			t.Fatal("no health check was answered")
		}
	}
	if w.Ready() {
		t.Error("a foreign server is ready")
	}
}

// counted tells of each health answer.
type counted struct {
	http.RoundTripper
	ch chan struct{}
}

func (c counted) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := c.RoundTripper.RoundTrip(r)
	if err == nil {
		select {
		case c.ch <- struct{}{}:
		default:
		}
	}
	return resp, err
}

func (c counted) CloseIdleConnections() { c.RoundTripper.(*http.Transport).CloseIdleConnections() }

func TestAProgramThatIsNotThere(t *testing.T) {
	w := supervise.New(supervise.Options{URL: "http://127.0.0.1:1", Log: slog.New(slog.DiscardHandler),
		Spec: proc.Spec{Name: "worker", Path: filepath.Join(t.TempDir(), "nothing")}})
	if err := w.Run(context.Background()); err == nil || !strings.Contains(err.Error(), "worker") {
		t.Errorf("error %v", err)
	}
}
