package poolse2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestStreamsLeaveFailingRealWorker: a worker whose machine is short of memory says
// that it is about to fail, and one that its machine hardly lets run slows down.
// Their streams leave with their KV, each text is that of the answer that was left
// alone, and its prompt is paid once.
func TestStreamsLeaveFailingRealWorker(t *testing.T) {
	library(t)
	f := emptyFleet(t, loopback{})
	short := served{model: model, file: "hub-cloud", runner: "moe", seqs: 16, cache: "off", flags: []string{"--memory-stalls", "10", "--cost-model", f.costModel(t, loaded)}}
	slow := short
	slow.model, slow.flags = "slow", []string{"--cost-model", f.costModel(t, 1)}
	f.pool(t, short, "m1", "m2")
	tell := f.all["m2"].underPressure(t)
	if soak {
		f.pool(t, slow, "m3", "m4")
	}
	f.movesOn = "auto"
	f.gateways(t, true)
	t.Run("short of memory", func(t *testing.T) {
		f.leaves(t, short, "m2", "m1", func() func() { tell(t, 20); return func() { tell(t, 0) } })
	})
	if soak {
		t.Run("hardly runs", func(t *testing.T) {
			f.leaves(t, slow, "m3", "m4", func() func() { return f.all["m3"].hardlyRuns(t) })
		})
	}
}

// leaves has a worker fail under streams until it has none any more. All of them
// may have ended before their KV was copied: then again.
func (f *fleet) leaves(t *testing.T, s served, victim, heir string, fail func() (mend func())) {
	questions, alone := f.leftAlone(t, atLength(s.model, 2, 1000, 2))
	for range 10 {
		f.sound(t, victim, heir)
		f.idle(t)
		before, counted := f.tally(t, f.all[heir]), f.counted("failing")
		var mend func()
		answers := f.busy(t, 4, func(nr int) question { return questions[nr%len(questions)] }, func() {
			eventually(t, victim+" has streams", func() bool { return f.runs(victim) > 1 })
			mend = fail()
			eventually(t, victim+" has nothing to do", func() bool { return f.outOf(victim) > 0 && f.runs(victim) == 0 })
		})
		f.idle(t)
		mend()
		s.compare(t, answers, alone)
		n := f.tally(t, f.all[heir]).minus(before)
		counted = f.counted("failing") - counted
		if counted > n.moved || n.pulls != n.moved || n.fallbacks != 0 || n.recomputed > mostRecomputed*n.moved {
			t.Errorf("the heir counts %+v, the gateways %v moves", n, counted)
		}
		if counted == 0 {
			continue
		}
		t.Logf("%.0f of %d streams left %s and stood still for %v on average; %.0f bytes pulled, %.0f tokens computed again",
			n.moved, len(answers), victim, n.stood(), n.pulled, n.recomputed)
		f.movedPaidOnce(t, answers)
		if soak {
			f.sound(t, victim)
		}
		return
	}
	t.Error("no answer was long enough to be moved")
}

// pressed is a host that is as short of memory as the file says, in place of
// Linux's own word of the machine and of control groups.
type pressed struct {
	loopback
	file, nothing string
}

// within implements site.
func (p pressed) within(t *testing.T, _ string, start func()) {
	t.Helper()
	var err error
	onThread(func() {
		if err = p.mount(); err == nil {
			start()
		}
	})
	if err != nil {
		t.Skipf("files of /proc and /sys can be replaced by root only, on a kernel that tells pressure: %v", err)
	}
}

// mount gives the calling thread files of its own.
func (p pressed) mount() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("private mounts: %w", err)
	}
	for on, what := range map[string]string{"/sys/fs/cgroup": p.nothing, "/proc/pressure/memory": p.file} {
		if err := unix.Mount(what, on, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("over %s: %w", on, err)
		}
	}
	return nil
}

// underPressure starts a worker again on a host whose shortness of memory it
// returns the dial of: percent of a minute in which everything stands still.
func (p *process) underPressure(t *testing.T) (tell func(t *testing.T, percent int)) {
	t.Helper()
	dir := t.TempDir()
	host := pressed{file: filepath.Join(dir, "memory"), nothing: filepath.Join(dir, "nothing")}
	tell = func(t *testing.T, percent int) {
		t.Helper()
		text := fmt.Sprintf("full avg10=%[1]d.00 avg60=%[1]d.00 avg300=0.00 total=1\n", percent)
		if err := os.WriteFile(host.file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(host.nothing, 0o700); err != nil {
		t.Fatal(err)
	}
	tell(t, 0)
	p.kill()
	p.site = host
	p.start(t)
	return tell
}

// hardlyRuns lets a process run for a tenth of the time, until mend is called.
func (p *process) hardlyRuns(t *testing.T) (mend func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			_ = syscall.Kill(p.child.PID(), syscall.SIGSTOP)
			time.Sleep(90 * time.Millisecond)
			_ = syscall.Kill(p.child.PID(), syscall.SIGCONT)
			time.Sleep(10 * time.Millisecond)
		}
	}()
	return func() { cancel(); <-ended }
}
