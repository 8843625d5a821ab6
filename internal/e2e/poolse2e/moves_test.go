package poolse2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// crowdedFleet has gateways over instances whose steps take 5 ms and 3 ms more a
// stream, and which tell that as a cost model.
func crowdedFleet(t *testing.T, roles map[string]string) *fleet {
	t.Helper()
	f := emptyFleet(t, loopback{})
	for name, role := range roles {
		f.instance(t, name, role, "fake-engine", "--model", model, "--weir", "--name", name, "--role", role,
			"--itl", "5ms", "--per-sequence", "3ms", "--log-level", "error")
	}
	f.gateways(t, true)
	return f
}

// TestStreamsEvenOut: one of two decode instances has all streams, far more than
// it can serve in time, when the other begins to decode. Streams move there by
// themselves, each gateway's own. Their clients see nothing of it, and each token
// is charged once.
func TestStreamsEvenOut(t *testing.T) {
	f := crowdedFleet(t, map[string]string{"p1": "prefill", "d1": "decode", "d2": "prefill"})
	want := f.long(t)
	most := 0
	answers := f.busy(t, count(28, 60), ofLength, func() {
		eventually(t, "all streams run at d1", func() bool { return f.runs("d1") >= count(24, 50) })
		most = f.runs("d1")
		f.setRole(t, "d2", "decode")
		eventually(t, "streams move", func() bool { return f.moves("d1").Gave["balance"] >= count(3, 8) })
	})
	f.unseen(t, answers, want)
	f.idle(t)
	d1, d2 := f.moves("d1"), f.moves("d2")
	t.Logf("of %d streams at d1 %d moved to d2 and %d back", most, d1.Gave["balance"], d2.Gave["balance"])
	if d1.Gave["balance"] != d2.Took || d2.Gave["balance"] != d1.Took {
		t.Errorf("d1 %+v, d2 %+v: streams got lost on their way", d1, d2)
	}
	f.stood(t, "balance", d1.Gave["balance"]+d2.Gave["balance"])
	f.movedPaidOnce(t, answers)
}

// TestStreamsLeaveFailingInstance: an instance says that it is about to fail, and
// one slows to a fifth while the others do not. Their streams leave, new work
// goes elsewhere, clients see nothing; and they come back.
func TestStreamsLeaveFailingInstance(t *testing.T) {
	f := crowdedFleet(t, map[string]string{"m1": "mixed", "m2": "mixed", "m3": "mixed"})
	want := f.long(t)
	for _, how := range []struct{ name, victim, path, sick, well string }{
		{"says so", "m2", "failing", "the disk is full", ""}, {"slows", "m1", "pace", "5", "1"}} {
		t.Run(how.name, func(t *testing.T) {
			answers := f.busy(t, count(15, 40), ofLength, func() {
				eventually(t, how.victim+" has streams", func() bool { return f.runs(how.victim) > 1 })
				f.put(t, how.victim, how.path, how.sick)
				eventually(t, "streams leave "+how.victim, func() bool { return f.moves(how.victim).Gave["failing"] > 0 })
				eventually(t, how.victim+" has nothing to do", func() bool { return f.outOf(how.victim) > 0 && f.runs(how.victim) == 0 })
			})
			f.unseen(t, answers, want)
			f.put(t, how.victim, how.path, how.well)
			f.sound(t, how.victim) // one that slowed rests for 10 s
			f.idle(t)
			f.movedPaidOnce(t, answers)
		})
	}
	f.stood(t, "failing", f.moves("m1").Gave["failing"]+f.moves("m2").Gave["failing"])
}

// sound waits until both gateways trust the instances.
func (f *fleet) sound(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		for _, g := range []string{"g1", "g2"} {
			eventually(t, name+" is sound at "+g, func() bool {
				in := f.pooled(g, name)
				return in.Ready && in.Failing == "" && !in.Suspect
			})
		}
	}
}

// stood tells how long streams that moved for a cause stood still, and checks that
// the gateways have measured it.
func (f *fleet) stood(t *testing.T, cause string, moves int) {
	t.Helper()
	sum := func(name string) (sum float64) {
		for _, g := range []string{"g1", "g2"} {
			for _, n := range f.series(f.all[g].ops, "weir_move_downtime_seconds_"+name, `cause="`+cause+`"`) {
				sum += n
			}
		}
		return sum
	}
	if n := sum("count"); n > float64(moves) || n == 0 {
		t.Errorf("%v of %d moves measured", n, moves)
	} else {
		t.Logf("%v streams moved (%s) and stood still for %.0f ms on average", n, cause, 1000*sum("sum")/n)
	}
}

// asked is what a client got for a question.
type asked struct {
	nr int // of the question
	answer
}

// busy has n clients ask one question after another, at both gateways, until
// during returns.
func (f *fleet) busy(t *testing.T, n int, question func(nr int) question, during func()) []asked {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	var out []asked
	var wg sync.WaitGroup
	var next atomic.Int64
	for i := range n {
		wg.Go(func() {
			for ctx.Err() == nil {
				nr := int(next.Add(1) - 1)
				a := f.pose(t.Context(), gatewayOf(i), question(nr))
				mu.Lock()
				out = append(out, asked{nr, a})
				mu.Unlock()
			}
		})
	}
	defer wg.Wait()
	defer cancel()
	during()
	cancel()
	wg.Wait()
	return out
}

// unseen checks that no client saw anything of what happened.
func (f *fleet) unseen(t *testing.T, answers []asked, want [prompts]string) {
	t.Helper()
	moved := 0
	for i := range answers {
		a := &answers[i]
		if !a.whole() || a.text != want[a.nr%prompts] {
			t.Errorf("%+v, want %q", a, want[a.nr%prompts])
		}
		if a.attempts > 1 {
			moved++
		}
	}
	t.Logf("%d streams, all whole; %d of them moved", len(answers), moved)
}

// outOf counts the gateways that keep new work from an instance that degrades. One
// that had nothing there while it was slow has no evidence.
func (f *fleet) outOf(name string) (n int) {
	for _, g := range []string{"g1", "g2"} {
		if s := f.pooled(g, name); !s.Ready && s.Failing != "" {
			n++
		}
	}
	return n
}

// longer is how many tokens the answers have whose streams move.
const longer = 60

// ofLength asks for so long an answer to one of the prompts.
func ofLength(nr int) question {
	return question{model: model, prompt: fmt.Sprint("prompt ", nr%prompts), tokens: longer, stream: true}
}

// long are the answers to the prompts of that length.
func (f *fleet) long(t *testing.T) (want [prompts]string) {
	t.Helper()
	for i := range want {
		a := f.ask(t.Context(), "g1", i, longer, false)
		if !a.whole() || len(strings.Fields(a.text)) != longer {
			t.Fatalf("before anything happened: %+v", a)
		}
		want[i] = a.text
	}
	return want
}

// moves sums what both gateways have moved from and to an instance.
func (f *fleet) moves(name string) (sum moved) {
	sum.Gave = map[string]int{}
	for _, g := range []string{"g1", "g2"} {
		m := f.pooled(g, name).Moves
		sum.Took += m.Took
		for cause, n := range m.Gave {
			sum.Gave[cause] += n
		}
	}
	return sum
}

// pooled is an instance as a gateway knows it.
func (f *fleet) pooled(gateway, name string) pooled {
	for _, in := range f.pools(gateway) {
		if in.Name == name {
			return in
		}
	}
	return pooled{}
}

// put changes what a fake engine does.
func (f *fleet) put(t *testing.T, name, what, value string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, f.all[name].url+"/fake/"+what, strings.NewReader(value))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := f.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s of %s: %d", what, name, resp.StatusCode)
	}
}

// movedPaidOnce is paidOnce of answers that moved, some of them in the short form.
func (f *fleet) movedPaidOnce(t *testing.T, answers []asked) {
	t.Helper()
	checked := 0
	for _, a := range answers {
		if a.attempts > 1 && checked < count(5, 1000) {
			checked++
			f.paidOnce(t, a.answer, a.attempts)
		}
	}
	if checked == 0 {
		t.Error("no answer has moved")
	}
}
