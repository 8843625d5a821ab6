package proc

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain lets the test binary play the processes: see role.
func TestMain(m *testing.M) {
	if r := os.Getenv("PROC_TEST_ROLE"); r != "" {
		role(r)
		return
	}
	os.Exit(m.Run())
}

func role(name string) {
	switch name {
	case "crash":
		os.Exit(3)
	case "child": // drains when asked, or when the parent is gone
		ctx, stop := Main(context.Background())
		defer stop()
		fmt.Println("up", os.Getpid())
		<-ctx.Done()
		fmt.Println("drained")
	case "slow": // drains until it is asked again, and then until the parent is gone
		ctx, stop := Main(context.Background())
		again := make(chan os.Signal, 1)
		fmt.Println("up", os.Getpid())
		<-ctx.Done()
		signal.Notify(again, syscall.SIGTERM)
		fmt.Println("draining")
		<-again
		stop()
		signal.Stop(again)
		fmt.Println("drained")
		time.Sleep(time.Second) // the signal of Stop comes
	case "stubborn":
		ctx, stop := Main(context.Background())
		defer stop()
		fmt.Println("up", os.Getpid())
		<-ctx.Done()
		select {}
	case "parent": // starts a child and waits to be killed
		c, err := Start(Spec{Name: "child", Path: os.Args[0], Env: []string{"PROC_TEST_ROLE=child"}, Output: os.Stdout})
		if err != nil {
			os.Exit(4)
		}
		<-c.Done()
	}
}

func spec(t *testing.T, role string) (Spec, *bufio.Reader) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	if err := r.SetReadDeadline(time.Now().Add(time.Minute)); err != nil { // w stays open here, so a dead child is no end
		t.Fatal(err)
	}
	return Spec{Name: role, Path: os.Args[0], Env: []string{"PROC_TEST_ROLE=" + role}, Output: w}, bufio.NewReader(r)
}

func line(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	s, err := r.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(s)
}

func TestStopDrains(t *testing.T) {
	s, out := spec(t, "child")
	c, err := Start(s)
	if err != nil {
		t.Fatal(err)
	}
	if got := line(t, out); got != "up "+strconv.Itoa(c.PID()) {
		t.Fatalf("first line %q", got)
	}
	c.Stop(20 * time.Second)
	if got := line(t, out); got != "drained" || c.Err() != nil {
		t.Errorf("line %q, exit %v", got, c.Err())
	}
}

// Signals that come twice do not end a child's draining, nor those that come while
// it ends.
func TestSignalsDoNotEndDraining(t *testing.T) {
	s, out := spec(t, "slow")
	c, err := Start(s)
	if err != nil {
		t.Fatal(err)
	}
	line(t, out)
	for _, want := range []string{"draining", "drained"} {
		if err := syscall.Kill(c.PID(), syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if got := line(t, out); got != want {
			t.Fatalf("line %q", got)
		}
	}
	c.Stop(20 * time.Second)
	if c.Err() != nil {
		t.Errorf("exit %v", c.Err())
	}
}

func TestStopKillsAfterItsGrace(t *testing.T) {
	s, out := spec(t, "stubborn")
	c, err := Start(s)
	if err != nil {
		t.Fatal(err)
	}
	line(t, out)
	c.Stop(10 * time.Millisecond)
	if c.Err() == nil {
		t.Error("a killed child must not look like a clean exit")
	}
}

func TestChildDiesWithItsParent(t *testing.T) {
	s, out := spec(t, "parent")
	c, err := Start(s)
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(line(t, out))
	if err := syscall.Kill(c.PID(), syscall.SIGKILL); err != nil { // the parent alone
		t.Fatal(err)
	}
	if got := line(t, out); got != "drained" {
		t.Errorf("grandchild %s said %q", fields[1], got)
	}
}

func TestSupervisorRestarts(t *testing.T) {
	s, _ := spec(t, "crash")
	starts := make(chan int, 2)
	sup := &Supervisor{Spec: s, Backoff: Backoff{Base: time.Millisecond, Max: time.Millisecond, Reset: time.Hour},
		Grace: time.Second, Log: slog.New(slog.DiscardHandler), OnStart: func(c *Child) {
			select {
			case starts <- c.PID():
			default: // it crashes on and on
			}
		}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- sup.Run(ctx) }()
	if first, second := <-starts, <-starts; first == second {
		t.Errorf("the second start has the first's pid %d", first)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run = %v", err)
	}
}

func TestSupervisorReportsAMissingProgram(t *testing.T) {
	sup := &Supervisor{Spec: Spec{Name: "x", Path: "/nonexistent/weir"}, Log: slog.New(slog.DiscardHandler)}
	if err := sup.Run(context.Background()); err == nil || !strings.Contains(err.Error(), "start x") {
		t.Errorf("Run = %v", err)
	}
}

func TestBackoff(t *testing.T) {
	b := Backoff{Base: time.Second, Max: 5 * time.Second}
	for n, want := range map[int]time.Duration{1: time.Second, 2: 2 * time.Second, 3: 4 * time.Second, 4: 5 * time.Second, 90: 5 * time.Second} {
		if got := b.Delay(n, 0); got != want {
			t.Errorf("Delay(%d) = %s, want %s", n, got, want)
		}
	}
	if got := b.Delay(1, 0.999); got < 750*time.Millisecond || got > time.Second {
		t.Errorf("jitter leaves %s", got)
	}
}
