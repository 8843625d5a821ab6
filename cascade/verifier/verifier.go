// Package verifier reads what a model says of an answer as a noisy sensor of a
// hidden state: whether edge and cloud are right. Source: AutoMix (POMDP
// meta-verifier). It is pure.
package verifier

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

// MostVotes bounds the samples of a verifier.
const MostVotes = 10

// Votes are the yes among the samples of one answer.
type Votes struct {
	Yes int `json:"yes"`
	Of  int `json:"of"`
	// Sampled says that samples were drawn and counted; else Yes is the rounded
	// share of the model's probability. The two scatter differently.
	Sampled bool `json:"sampled,omitempty"`
}

// Table counts labelled requests by state and by yes votes. Unlike a threshold
// it may learn that very few votes mean a question that nobody can answer, on
// which escalation is wasted.
type Table struct {
	votes   int
	sampled bool
	counts  [stateCount][MostVotes + 1]float64 // with the prior
	squares float64                            // sum of the squared weights
}

// prior is the Dirichlet prior of a cell.
const prior = .5

// New returns a table for so many samples (1 to 10; others are brought into the
// range), with a Dirichlet prior of one half per cell.
func New(samples int) *Table {
	t := &Table{votes: max(1, min(MostVotes, samples))}
	for s := range t.counts {
		for o := range t.votes + 1 {
			t.counts[s][o] = prior
		}
	}
	return t
}

// NewFor returns a table for votes like v, as New does.
func NewFor(v Votes) *Table {
	t := New(v.Of)
	t.sampled = v.Sampled
	return t
}

// Reads reports whether the table is for votes like v: of as many samples, that
// were counted in the same way.
func (t *Table) Reads(v Votes) bool { return v.Of == t.votes && v.Sampled == t.sampled }

// Like reports whether both tables are for the same votes.
func (t *Table) Like(other *Table) bool { return t.votes == other.votes && t.sampled == other.sampled }

// Samples is the number of samples that the table is for.
func (t *Table) Samples() int { return t.votes }

// Observe learns from a labelled request with yes votes, of weight w.
func (t *Table) Observe(s State, yes int, w float64) {
	if s < stateCount && yes >= 0 && yes <= t.votes && w > 0 {
		t.counts[s][yes] += w
		t.squares += w * w
	}
}

// Age multiplies the weight of all labels so far.
func (t *Table) Age(by float64) {
	for s := range t.counts {
		for o := range t.votes + 1 {
			t.counts[s][o] = prior + by*(t.counts[s][o]-prior)
		}
	}
	t.squares *= by * by
}

// Clone returns a copy.
func (t *Table) Clone() *Table {
	c := *t
	return &c
}

// Plus returns a table with the labels of both, which are Like each other.
func (t *Table) Plus(other *Table) *Table {
	sum := t.Clone()
	for s := range sum.counts {
		for o := range sum.votes + 1 {
			sum.counts[s][o] += other.counts[s][o] - prior
		}
	}
	sum.squares += other.squares
	return sum
}

// Labels is the effective number of labels, (sum w)^2 / sum w^2.
func (t *Table) Labels() float64 {
	if !(t.squares > 0) {
		return 0
	}
	sum := t.weight()
	return sum * sum / t.squares
}

// weight is the sum of the labels' weights.
func (t *Table) weight() float64 {
	sum := 0.0
	for s := range t.counts {
		for o := range t.votes + 1 {
			sum += t.counts[s][o] - prior
		}
	}
	return sum
}

// Judge updates what is expected of an answer after yes votes: edge and cloud
// are the probabilities that either is right, before and after, of which the
// calibrations know nothing in common. Votes that are equally likely in every
// state change nothing, to the bit. It allocates nothing.
func (t *Table) Judge(edge, cloud float64, yes int) (edgeAfter, cloudAfter float64) {
	yes = max(0, min(t.votes, yes))
	var likely [stateCount]float64 // of these votes, by state
	for s := range likely {
		seen := 0.0
		for o := range t.votes + 1 {
			seen += t.counts[s][o]
		}
		likely[s] = t.counts[s][yes] / seen
	}
	if likely == [stateCount]float64{likely[0], likely[0], likely[0], likely[0]} {
		return edge, cloud
	}
	both, only := edge*cloud*likely[BothRight], (1-edge)*cloud*likely[OnlyCloud]
	alone, none := edge*(1-cloud)*likely[OnlyEdge], (1-edge)*(1-cloud)*likely[BothWrong]
	total := both + only + alone + none
	if !(total > 0) {
		return edge, cloud
	}
	return min(1, (both+alone)/total), min(1, (both+only)/total)
}
