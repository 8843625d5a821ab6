package replay

import (
	"errors"
	"fmt"
	"math"

	"github.com/weirhq/weir/cascade/verifier"
)

// CalibrateVerifier counts the votes of answers by what is true of them, for votes
// like kind. Answers without votes or without the cloud's label are left out; an
// error where none is left, or where there are more votes than samples.
func CalibrateVerifier(answers []LabelledAnswer, kind verifier.Votes) (*verifier.Table, error) {
	t := verifier.NewFor(kind)
	n := 0
	for i, a := range answers {
		if math.IsNaN(a.Votes) || math.IsNaN(a.Cloud) {
			continue
		}
		if !(a.Votes >= 0 && a.Votes <= float64(kind.Of)) || math.Trunc(a.Votes) != a.Votes {
			return nil, fmt.Errorf("row %d: votes is %v, want a whole number of 0 to %d", i+1, a.Votes, kind.Of)
		}
		t.Observe(verifier.StateOf(a.Edge >= .5, a.Cloud >= .5), int(a.Votes), 1)
		n++
	}
	if n == 0 {
		return nil, errors.New("a verifier needs answers with votes and cloud_ok")
	}
	return t, nil
}
