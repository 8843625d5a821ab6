package poolse2e

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const (
	prompts = 4
	tokens  = 40
)

// crowd sends streams to both gateways, a few at a time, so that they are at
// all stages when hit is called: some have ended, most run, others have not
// come yet.
func (f *fleet) crowd(t *testing.T, n, tokens int, hit func()) []answer {
	t.Helper()
	return f.crowdOf(t, n, func(i int) question {
		return question{model: model, prompt: fmt.Sprint("prompt ", i%prompts), tokens: tokens, stream: true}
	}, hit)
}

// crowdOf is crowd with questions of its own.
func (f *fleet) crowdOf(t *testing.T, n int, question func(i int) question, hit func()) []answer {
	t.Helper()
	out := make([]answer, n)
	var running atomic.Int64
	var wg sync.WaitGroup
	reached := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			out[i] = f.pose(t.Context(), gatewayOf(i), question(i), func() {
				if running.Add(1) == int64(n/3) {
					close(reached)
				}
			})
		})
		time.Sleep(1500 * time.Millisecond / time.Duration(n)) // spreads the streams over their stages
	}
	select {
	case <-reached:
	case <-time.After(patience):
		t.Fatal("a third of the streams never began")
	}
	hit()
	wg.Wait()
	return out
}

func gatewayOf(i int) string { return [...]string{"g1", "g2"}[i/prompts%2] }

// anyText stands for answers that nobody compares.
var anyText [prompts]string

// undisturbed are the answers to the prompts.
func (f *fleet) undisturbed(t *testing.T) (want [prompts]string) {
	t.Helper()
	for i := range want {
		a := f.ask(t.Context(), "g1", i, tokens, false)
		if !a.whole() || len(strings.Fields(a.text)) != tokens {
			t.Fatalf("before anything happened: %+v", a)
		}
		want[i] = a.text
	}
	return want
}

// recovers waits until everybody serves and nothing is under way, and checks
// the books.
func (f *fleet) recovers(t *testing.T, answers []answer) {
	t.Helper()
	f.ready(t, "g1")
	f.ready(t, "g2")
	f.idle(t)
	f.ledgerHas(t, answers)
}

// TestVictims kills and stops each kind of process under many streams.
func TestVictims(t *testing.T) {
	f := newFleet(t, loopback{}, 40*time.Millisecond, false)
	want := f.undisturbed(t)
	n := count(40, 200)
	stop := time.Duration(count(4, 30)) * time.Second
	for _, victim := range []string{"p1", "d1", "g1"} {
		for _, how := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
			t.Run(fmt.Sprint(victim, " ", how), func(t *testing.T) {
				p := f.all[victim]
				answers := f.crowd(t, n, tokens, func() {
					eventually(t, "streams are at "+victim, func() bool { return victim != "d1" || f.runs(victim) > 0 })
					p.signal(t, how)
					if how == syscall.SIGSTOP {
						if victim == "d1" { // for seconds more than the gateways wait for it
							time.Sleep(2 * time.Second)
						}
						time.Sleep(stop)
						p.signal(t, syscall.SIGCONT)
						return
					}
					<-p.child.Done()
					p.start(t)
				})
				f.judge(t, victim, how.String(), answers, want)
				f.recovers(t, answers)
			})
		}
	}
}

// TestWholeAnswers ends the instance that computes answers that are not
// streamed: it finishes them in its time to drain, or another begins them anew.
func TestWholeAnswers(t *testing.T) {
	f := newFleet(t, loopback{}, 25*time.Millisecond, false)
	want := f.undisturbed(t)
	for victim, how := range map[string]syscall.Signal{"d1": syscall.SIGTERM, "d2": syscall.SIGKILL} {
		t.Run(how.String(), func(t *testing.T) {
			answers := make([]answer, 16)
			var wg sync.WaitGroup
			for i := range answers {
				wg.Go(func() { answers[i] = f.ask(t.Context(), gatewayOf(i), i%prompts, tokens, false) })
			}
			eventually(t, victim+" computes", func() bool { return f.runs(victim) > 0 })
			p := f.all[victim]
			p.signal(t, how)
			<-p.child.Done()
			wg.Wait()
			p.start(t)
			f.judge(t, victim+", not streamed,", how.String(), answers, want)
			f.recovers(t, answers)
		})
	}
}

// judge checks what the clients got. Only what happens to a gateway may be
// seen, by its own clients and as a failure.
func (f *fleet) judge(t *testing.T, victim, how string, answers []answer, want [prompts]string) {
	t.Helper()
	whole, said, again := 0, 0, 0
	for i := range answers {
		a := &answers[i]
		if a.attempts > 1 {
			again++
		}
		mayFail := victim == "g1" && gatewayOf(i) == "g1"
		switch {
		case a.late:
			t.Errorf("stream %d hung: %+v", i, a)
		case a.whole() && (a.text == want[i%prompts] || want == anyText):
			whole++
		case mayFail && a.said() && strings.HasPrefix(want[i%prompts], a.text):
			said++
		default:
			t.Errorf("stream %d: %+v, want %q", i, a, want[i%prompts])
		}
	}
	t.Logf("%s %s: %d of %d streams whole, %d after more than one attempt, %d cut with their gateway", victim, how, whole, len(answers), again, said)
	if whole == 0 || victim == "d1" && again == 0 {
		t.Error("no stream came through, or none was hit")
	}
}

// ledgerHas checks that each whole answer has exactly one row that says so, and
// no request two.
func (f *fleet) ledgerHas(t *testing.T, answers []answer) {
	t.Helper()
	for i := range answers {
		a := &answers[i]
		if a.operation == "" || i%7 != 0 && !soak {
			continue
		}
		var l struct{ Rows []struct{ Outcome string } }
		oks := 0
		eventually(t, "the ledger knows "+a.operation, func() bool {
			if f.get(f.all["g2"].url+"/admin/v1/usage?operation_id="+a.operation, f.admin, &l) != nil {
				return false
			}
			oks = 0
			for _, r := range l.Rows {
				if r.Outcome == "ok" {
					oks++
				}
			}
			return len(l.Rows) > 0 && (!a.whole() || oks > 0)
		})
		if a.whole() && oks != 1 || oks > 1 {
			t.Errorf("operation %s: %+v", a.operation, l.Rows)
		}
	}
}
