package tiers

// State is what is true of a request, hidden from the policy.
type State uint8

// The states of edge and cloud on one request.
const (
	BothRight State = iota
	OnlyCloud
	OnlyEdge
	BothWrong
	stateCount
)

// StateOf names the state of two labels.
func StateOf(edgeRight, cloudRight bool) State {
	switch {
	case edgeRight && cloudRight:
		return BothRight
	case cloudRight:
		return OnlyCloud
	case edgeRight:
		return OnlyEdge
	}
	return BothWrong
}

// maxVotes bounds the samples of a verifier.
const maxVotes = 10

// Verifier reads the yes-votes of k self-checks as a noisy sensor of the hidden
// state. Unlike a threshold it may learn that very few votes mean a question
// that nobody can answer, on which escalation is wasted. Source: AutoMix.
type Verifier struct {
	votes  int
	counts [stateCount][maxVotes + 1]float64
}

// NewVerifier returns a verifier for k samples (1 to 10; others are brought
// into the range), with a Dirichlet prior of one half per cell.
func NewVerifier(k int) *Verifier {
	v := &Verifier{votes: max(1, min(maxVotes, k))}
	for s := range v.counts {
		for o := range v.votes + 1 {
			v.counts[s][o] = .5
		}
	}
	return v
}

// Observe learns from a labelled request with yes votes, of weight w.
func (v *Verifier) Observe(s State, yes int, w float64) {
	if s < stateCount && yes >= 0 && yes <= v.votes && w > 0 {
		v.counts[s][yes] += w
	}
}

// Belief returns the probability of each state after yes votes.
func (v *Verifier) Belief(yes int) [stateCount]float64 {
	yes = max(0, min(v.votes, yes))
	var b [stateCount]float64
	total := 0.0
	for s := range b {
		b[s] = v.counts[s][yes] // P(o|s) P(s), up to a factor
		total += b[s]
	}
	for s := range b {
		b[s] /= total
	}
	return b
}

// Gain is the expected gain of escalating after yes votes: the probability that
// only the cloud is right less that only the edge is. Escalate when it exceeds
// the policy's theta. Use it only where the viability test of the verifier
// passes.
func (v *Verifier) Gain(yes int) float64 {
	b := v.Belief(yes)
	return b[OnlyCloud] - b[OnlyEdge]
}
