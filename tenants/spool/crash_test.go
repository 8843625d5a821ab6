package spool

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/tenants"
)

const (
	childEnv = "WEIR_SPOOL_TEST_DIR"
	firstEnv = "WEIR_SPOOL_TEST_FIRST"
	soakEnv  = "WEIR_SOAK"
)

// child is the process that gets killed: it admits and settles without end,
// several at once, and says what has been acknowledged.
func child(dir string) {
	s, err := Open(Options{Dir: dir, SegmentBytes: small, SyncEvery: time.Millisecond})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	first, _ := strconv.Atoi(os.Getenv(firstEnv))
	say := make(chan string)
	for w := range 4 {
		go func() {
			for i := first + w; ; i += 4 {
				var ticket Ticket
				if err := s.Admit(record(i), &ticket); err != nil {
					say <- "error " + err.Error()
					return
				}
				say <- fmt.Sprint("admitted ", i)
				if i%3 == 0 {
					continue // a request that never ends
				}
				if err := s.Settle(&ticket, record(i)); err != nil {
					say <- "error " + err.Error()
					return
				}
				say <- fmt.Sprint("settled ", i)
			}
		}()
	}
	for line := range say {
		fmt.Println(line)
	}
}

// acknowledged is what a child said before it died.
type acknowledged struct{ admitted, settled map[string]bool }

// killAfter runs a child, kills it after so many lines, and takes them in.
func killAfter(t *testing.T, dir string, first, lines int, ack *acknowledged) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^$")
	cmd.Env = append(os.Environ(), childEnv+"="+dir, firstEnv+"="+strconv.Itoa(first))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	scan := bufio.NewScanner(out)
	for n := 0; scan.Scan(); n++ {
		what, number, _ := strings.Cut(scan.Text(), " ")
		i, err := strconv.Atoi(number)
		if err != nil {
			t.Errorf("child: %s", scan.Text())
			break
		}
		switch what {
		case "admitted":
			ack.admitted[record(i).AttemptID] = true
		case "settled":
			ack.settled[record(i).AttemptID] = true
		}
		if n == lines {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the child ended by itself")
	}
}

// peers.md B 4: whenever the process is killed, every acknowledged settlement
// is delivered, every other admission becomes a gateway_lost row, and no
// attempt has two rows.
func TestKillAtAnyStage(t *testing.T) {
	kills := 6
	if os.Getenv(soakEnv) != "" {
		kills = 100
	}
	rng := rand.New(rand.NewPCG(7, uint64(kills)))
	dir := t.TempDir()
	ack := &acknowledged{map[string]bool{}, map[string]bool{}}
	got := map[string]tenants.Outcome{}
	for k := range kills {
		killAfter(t, dir, k*1_000_000, 20+rng.IntN(800), ack)
		if k%3 != 2 && k != kills-1 {
			continue // let several dead processes pile up
		}
		s := open(t, Options{Dir: dir, SegmentBytes: small})
		for _, r := range drainAll(t, s) {
			if _, twice := got[r.AttemptID]; twice {
				t.Errorf("attempt %s came twice", r.AttemptID)
			}
			got[r.AttemptID] = r.Outcome
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	lost, wrong := 0, 0
	for id := range ack.admitted {
		switch got[id] {
		case tenants.OutcomeOK: // perhaps killed before it could say so
		case tenants.OutcomeGatewayLost:
			lost++
			if !ack.settled[id] {
				continue
			}
			fallthrough
		default:
			if wrong++; wrong < 10 {
				t.Errorf("attempt %s (settled: %v) has outcome %q", id, ack.settled[id], got[id])
			}
		}
	}
	if lost == 0 || len(ack.settled) == 0 {
		t.Errorf("%d lost, %d settled: the test saw nothing", lost, len(ack.settled))
	}
	t.Logf("%d kills, %d admitted, %d settled, %d lost, %d wrong", kills, len(ack.admitted), len(ack.settled), lost, wrong)
}
