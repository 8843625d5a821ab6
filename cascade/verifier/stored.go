package verifier

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Prompt is the version of the question that a model is asked (package
// internal/ballot). Votes on another question are others: a table is bound to it.
const Prompt = 1

// ErrTable says that a stored table cannot be used; the message names the member.
var ErrTable = errors.New("verifier's table")

// stored is a table as it is stored: labels by state (both right, only the cloud,
// only the edge, neither) and by yes votes.
type stored struct {
	Prompt  int         `json:"prompt"`
	Votes   int         `json:"votes"`
	Sampled bool        `json:"sampled,omitempty"`
	Counts  [][]float64 `json:"counts"`
	Squares float64     `json:"squares"`
}

// mostStored bounds a number of a stored table.
const mostStored = 1e6

// MarshalJSON implements json.Marshaler.
func (t *Table) MarshalJSON() ([]byte, error) {
	v := stored{Prompt: Prompt, Votes: t.votes, Sampled: t.sampled, Counts: make([][]float64, stateCount), Squares: t.squares}
	for s := range v.Counts {
		for o := range t.votes + 1 {
			v.Counts[s] = append(v.Counts[s], t.counts[s][o]-prior)
		}
	}
	return json.Marshal(v)
}

// UnmarshalJSON reads what MarshalJSON writes. Unknown keys, impossible counts and
// votes on another question are refused with ErrTable.
func (t *Table) UnmarshalJSON(data []byte) error {
	var v stored
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&v); err != nil {
		return fmt.Errorf("%w: %w", ErrTable, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: data after the JSON object", ErrTable)
	}
	switch {
	case v.Prompt != Prompt:
		return fmt.Errorf("%w: prompt is %d, this release asks %d: collect votes anew", ErrTable, v.Prompt, Prompt)
	case v.Votes < 1 || v.Votes > MostVotes || len(v.Counts) != int(stateCount):
		return fmt.Errorf("%w: want 1 to %d votes and counts of %d states", ErrTable, MostVotes, stateCount)
	case !(v.Squares >= 0 && v.Squares <= mostStored):
		return fmt.Errorf("%w: squares is %v, want 0 to %v", ErrTable, v.Squares, mostStored)
	}
	next := NewFor(Votes{Of: v.Votes, Sampled: v.Sampled})
	for s, row := range v.Counts {
		if len(row) != v.Votes+1 {
			return fmt.Errorf("%w: counts[%d] has %d entries, want %d", ErrTable, s, len(row), v.Votes+1)
		}
		for o, n := range row {
			if !(n >= 0 && n <= mostStored) {
				return fmt.Errorf("%w: counts[%d][%d] is %v, want 0 to %v", ErrTable, s, o, n, mostStored)
			}
			next.counts[s][o] += n
		}
	}
	next.squares = v.Squares
	*t = *next
	return nil
}
