package replay

import (
	"fmt"
	"slices"
	"strings"
)

// Words that files use for the parts of a data set. Those for validation are
// the test part where there is no other.
var (
	trainWords      = []string{"train", "training", "fit", "calibration", "calib", "cal"}
	validationWords = []string{"dev", "validation", "valid", "val"}
	testWords       = []string{"test", "testing", "eval", "evaluation", "heldout", "held-out", "held_out", "holdout"}
)

// split assigns the records to train and test by the cells of a column, one a
// record. A column that does not tell two parts apart leaves a stream.
func (d *Data) split(column string, cells []string) {
	words := make([]string, len(cells))
	has := func(list []string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return slices.Contains(list, w) })
	}
	for i, c := range cells {
		words[i] = strings.ToLower(strings.TrimSpace(c))
	}
	validation := SplitTrain
	if has(trainWords) && !has(testWords) {
		validation = SplitTest
	}
	for i, w := range words {
		switch {
		case slices.Contains(trainWords, w):
			d.Records[i].Split = SplitTrain
		case slices.Contains(testWords, w):
			d.Records[i].Split = SplitTest
		case slices.Contains(validationWords, w):
			d.Records[i].Split = validation
		}
	}
	if d.HasSplit() {
		d.leftOut(d.outside(), "are neither train nor test")
		return
	}
	slices.Sort(words)
	words = slices.Compact(words)
	d.Notes = append(d.Notes, fmt.Sprintf("column %q does not tell train from test (it has %s): all rows are one stream",
		column, strings.Join(words[:min(4, len(words))], ", ")))
}
