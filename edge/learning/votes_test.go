package learning

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/journal"
	"github.com/weirhq/weir/cascade/learn"
	"github.com/weirhq/weir/cascade/verifier"
)

// ask gives votes that tell: three for a right answer, none for a wrong one.
func ask(right bool) Poll {
	return func(context.Context) *verifier.Votes {
		if right {
			return &verifier.Votes{Yes: 3, Of: 3}
		}
		return &verifier.Votes{Of: 3}
	}
}

// Votes are asked for before a label, whether its answer was let over or kept, and
// make the verifier's table; what waits when the node stops is labelled without.
func TestLabelsHaveVotes(t *testing.T) {
	dir := t.TempDir()
	f := start(t, dir, calibration(), Limits{PerHour: 3600, PerDay: 1 << 40})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = f.Run(ctx) }()
	await(t, "somebody asks", func() bool { f.polls.mu.Lock(); defer f.polls.mu.Unlock(); return f.polls.queue != nil })
	rng := rand.New(rand.NewPCG(1, 1))
	labels := uint64(0)
	for i := range 300 {
		answer := []string{"right", "wrong"}[i%2]
		p := Pair{Operation: fmt.Sprint("op", i), Cell: "chat", Model: "fp", Features: []float64{rng.NormFloat64()}, Answer: answer, Propensity: 1, Poll: ask(i%2 == 0)}
		if i%10 == 9 {
			f.Shadow(p, 0, func(context.Context) (Answer, error) { return Answer{Text: "right"}, nil })
		} else {
			f.Escalated(p, Answer{Text: "right"}, 0)
		}
		labels++
		await(t, "its label", func() bool { return f.counts.escalated.Load()+f.counts.shadowed.Load() == labels })
	}
	v := f.View("chat")
	if v.Verifier == nil || v.Verifier.Samples() != 3 || v.VerifierGrade != learn.GradeUsable {
		t.Fatalf("view %+v", v)
	}
	hangs := make(chan struct{})
	f.Escalated(Pair{Operation: "x", Cell: "chat", Model: "fp", Features: []float64{1}, Answer: "right", Poll: func(ctx context.Context) *verifier.Votes {
		close(hangs)
		<-ctx.Done()
		return nil
	}}, Answer{Text: "right"}, 0)
	<-hangs
	f.Escalated(Pair{Operation: "y", Cell: "chat", Model: "fp", Features: []float64{1}, Answer: "right", Poll: ask(true)}, Answer{Text: "right"}, 0)
	stop()
	<-ended
	f.Escalated(Pair{Operation: "z", Cell: "chat", Model: "fp", Features: []float64{1}, Answer: "right", Poll: ask(true)}, Answer{Text: "right"}, 0)
	f.stop(t)
	voted, labelled := 0, 0
	err := journal.Replay(dir, 0, func(r journal.Record) error {
		if r.Kind == journal.KindLabel {
			labelled++
			if r.Votes != nil {
				voted++
			}
		}
		return nil
	})
	if err != nil || labelled != 303 || voted != 300 {
		t.Errorf("%d labels, %d with votes, %v", labelled, voted, err)
	}
}

// What the log holds gives the same table after a restart, and so the same verdict
// for the same votes, bit for bit.
func TestVotesReplay(t *testing.T) {
	dir := t.TempDir()
	f := start(t, dir, calibration(), Limits{})
	rng := rand.New(rand.NewPCG(2, 2))
	for i := range 400 {
		right := rng.Float64() < .6
		p := Pair{Operation: fmt.Sprint("op", i), Cell: "chat", Model: "fp", Features: []float64{rng.NormFloat64()}, Answer: map[bool]string{true: "right", false: "wrong"}[right],
			Propensity: 1 / float64(1+i%3), Votes: &verifier.Votes{Yes: rng.IntN(2) + 2*map[bool]int{true: 1}[right], Of: 3}}
		f.label(p, Answer{Text: "right"}, false)
	}
	f.stop(t)
	before := f.View("chat")
	for _, how := range []string{"from the log", "from the snapshot"} {
		back := start(t, dir, calibration(), Limits{})
		after := back.View("chat")
		for yes := range 4 {
			pol := cascade.GainPolicy(0, before.CloudQuality)
			p, q := cascade.Voted(.7, pol, 0, before.Verifier, yes)
			p2, q2 := cascade.Voted(.7, pol, 0, after.Verifier, yes)
			if p != p2 || q.CloudQuality != q2.CloudQuality || before.VerifierGrade != after.VerifierGrade {
				t.Errorf("%s: %d votes make %v %v, were %v %v", how, yes, p2, q2.CloudQuality, p, q.CloudQuality)
			}
		}
		back.Save(400)
		back.stop(t)
	}
}

// await waits until ok holds.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}
