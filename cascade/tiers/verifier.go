package tiers

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/weirhq/weir/cascade/learn"
)

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

// ErrVerifier says that a stored table cannot be used; the message names the
// member.
var ErrVerifier = errors.New("verifier's table")

// prior is the Dirichlet prior of a cell.
const prior = .5

// NewVerifier returns a verifier for k samples (1 to 10; others are brought
// into the range), with a Dirichlet prior of one half per cell.
func NewVerifier(k int) *Verifier {
	v := &Verifier{votes: max(1, min(maxVotes, k))}
	for s := range v.counts {
		for o := range v.votes + 1 {
			v.counts[s][o] = prior
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

// Judge updates what is expected of an answer after yes votes: edge and cloud
// are the probabilities that either is right, before and after, of which the
// calibrations know nothing in common. A policy then compares the new ones as it
// does the old.
func (v *Verifier) Judge(edge, cloud float64, yes int) (edgeAfter, cloudAfter float64) {
	yes = max(0, min(v.votes, yes))
	before := [stateCount]float64{BothRight: edge * cloud, OnlyCloud: (1 - edge) * cloud, OnlyEdge: edge * (1 - cloud), BothWrong: (1 - edge) * (1 - cloud)}
	var after [stateCount]float64
	total := 0.0
	for s := range after {
		seen := 0.0
		for o := range v.votes + 1 {
			seen += v.counts[s][o]
		}
		after[s] = before[s] * v.counts[s][yes] / seen
		total += after[s]
	}
	if !(total > 0) {
		return edge, cloud
	}
	return (after[BothRight] + after[OnlyEdge]) / total, (after[BothRight] + after[OnlyCloud]) / total
}

// Viable grades the votes on the labels behind the table: whether they find the
// requests on which escalation helps. A verifier that is not usable must not be
// asked; a small model's word on itself may be worth nothing.
func (v *Verifier) Viable() learn.Grade {
	var gain []float64
	var helps []bool
	for s := range v.counts {
		for o := range v.votes + 1 {
			for range int(math.Round(v.counts[s][o] - prior)) {
				gain = append(gain, v.Gain(o))
				helps = append(helps, State(s) == OnlyCloud)
			}
		}
	}
	grade, _, _ := learn.Viability(gain, helps, nil)
	return grade
}

// table is a verifier as it is stored: labels by state (both right, only the
// cloud, only the edge, neither) and by yes votes.
type table struct {
	Votes  int         `json:"votes"`
	Counts [][]float64 `json:"counts"`
}

// maxLabels bounds a cell of a stored table.
const maxLabels = 1e5

// MarshalJSON implements json.Marshaler.
func (v *Verifier) MarshalJSON() ([]byte, error) {
	t := table{Votes: v.votes, Counts: make([][]float64, stateCount)}
	for s := range t.Counts {
		for o := range v.votes + 1 {
			t.Counts[s] = append(t.Counts[s], v.counts[s][o]-prior)
		}
	}
	return json.Marshal(t)
}

// ParseVerifier reads what MarshalJSON writes. Unknown keys and impossible
// counts are refused.
func ParseVerifier(data []byte) (*Verifier, error) {
	var t table
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&t); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrVerifier, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: data after the JSON object", ErrVerifier)
	}
	if t.Votes < 1 || t.Votes > maxVotes || len(t.Counts) != int(stateCount) {
		return nil, fmt.Errorf("%w: want 1 to %d votes and counts of %d states", ErrVerifier, maxVotes, stateCount)
	}
	v := NewVerifier(t.Votes)
	for s, row := range t.Counts {
		if len(row) != t.Votes+1 {
			return nil, fmt.Errorf("%w: counts[%d] has %d entries, want %d", ErrVerifier, s, len(row), t.Votes+1)
		}
		for o, n := range row {
			if !(n >= 0 && n <= maxLabels) {
				return nil, fmt.Errorf("%w: counts[%d][%d] is %v, want 0 to %v", ErrVerifier, s, o, n, maxLabels)
			}
			v.Observe(State(s), o, n)
		}
	}
	return v, nil
}
