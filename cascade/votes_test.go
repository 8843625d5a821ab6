package cascade

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/weirhq/weir/cascade/verifier"
)

// Nobody is asked where no number of votes turns the verdict, and where they are
// asked some number does. Votes never lift a hard limit.
func TestVotesMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table := verifier.New(rapid.IntRange(1, 5).Draw(t, "samples"))
		for range rapid.IntRange(0, 30).Draw(t, "labels") {
			table.Observe(verifier.State(rapid.IntRange(0, 3).Draw(t, "state")), rapid.IntRange(0, 5).Draw(t, "yes"), 1)
		}
		pol := ThresholdPolicy(rapid.Float64Range(0, 1).Draw(t, "threshold"))
		if rapid.Bool().Draw(t, "gain") {
			pol = GainPolicy(rapid.Float64Range(-.5, .5).Draw(t, "theta"), rapid.Float64Range(0, 1).Draw(t, "quality"))
		}
		pe, cloud := rapid.Float64Range(0, 1).Draw(t, "edge"), rapid.Float64Range(0, 1).Draw(t, "cloud")
		node, local := Node{EdgeReady: true, Link: LinkUp}, Request{Privacy: PrivacyLocalOnly}
		before := Judge(&Request{}, pe, true, false, &pol, &node)
		turns := false
		for yes := range table.Samples() + 1 {
			after, p := Voted(pe, pol, cloud, table, yes)
			turns = turns || Judge(&Request{}, after, true, false, &p, &node).Escalate != before.Escalate
			if Judge(&local, after, true, false, &p, &node).Escalate {
				t.Fatal("votes let a local-only request out")
			}
		}
		if VotesMatter(pe, &pol, cloud, table) != turns {
			t.Fatalf("votes turn the verdict: %v", turns)
		}
	})
}

func BenchmarkVoted(b *testing.B) {
	table, pol := verifier.New(5), GainPolicy(0, .9)
	for i := range 100 {
		table.Observe(verifier.State(i%2), 5*(1-i%2), 1)
	}
	req, node := Request{}, Node{EdgeReady: true, Link: LinkUp}
	b.ReportAllocs()
	for b.Loop() {
		if VotesMatter(.7, &pol, 0, table) {
			pe, p := Voted(.7, pol, 0, table, 3)
			Judge(&req, pe, true, false, &p, &node)
		}
	}
}
