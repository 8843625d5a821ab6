// Package replay evaluates cascades offline: it reads outcomes of an edge and a
// cloud model, lets the policies of package cascade decide on them, and reports
// how good, how calibrated and how well controlled the decisions are. It holds
// the `weir cascade` commands.
package replay

import (
	"fmt"
	"math"
)

// Split says which part of a data set a record belongs to.
type Split uint8

// The splits. Data without any train record is a stream: policies that learn
// predict each record before they see its label.
const (
	SplitNone Split = iota
	SplitTrain
	SplitTest
)

// Signal names a confidence of the edge model that a file may hold. Bigger is
// more confident.
type Signal int

// The signals.
const (
	SignalConfidence Signal = iota // a probability, a log-probability or any score
	SignalP1                       // probability of the chosen option
	SignalMargin                   // probability of the best minus the second
	SignalNegEnt                   // minus the entropy, nats
	SignalAgree                    // 1 when a second cheap sample agreed
	signalCount
)

var signalNames = [signalCount]string{"confidence", "p1", "margin", "negent", "agree"}

// Record is one request with the outcomes of both tiers.
type Record struct {
	ID   string
	Set  string // name under which it is reported
	Cell string // task or route: the unit of calibration
	// Subject is what the prompt is about, finer than Cell; "" where it is not
	// known.
	Subject string
	// Edge and Cloud are scores in [0, 1].
	Edge, Cloud float64
	// Signals are NaN where the file has none.
	Signals [signalCount]float64
	// Votes are the edge model's yes on its own answer, a whole number up to
	// verifier.MostVotes; NaN where it was not asked.
	Votes float64
	// EdgeCost and CloudCost are dollars, EdgeMS and CloudMS milliseconds; NaN
	// where unknown.
	EdgeCost, CloudCost float64
	EdgeMS, CloudMS     float64
	// CloudTTFT is the cloud's time to its first token, milliseconds; NaN where
	// unknown.
	CloudTTFT float64
	// SwapEdge and SwapConfidence are another edge model's, for the fault
	// edge-swap; NaN where there is none.
	SwapEdge, SwapConfidence float64
	Chars                    float64 // length of the prompt; NaN where unknown
	Prompt                   string
	Split                    Split
}

func newRecord() Record {
	r := Record{Votes: math.NaN(), EdgeCost: math.NaN(), CloudCost: math.NaN(), EdgeMS: math.NaN(), CloudMS: math.NaN(), CloudTTFT: math.NaN(),
		SwapEdge: math.NaN(), SwapConfidence: math.NaN(), Chars: math.NaN()}
	for i := range r.Signals {
		r.Signals[i] = math.NaN()
	}
	return r
}

// scored reports whether both tiers have a score.
func (r *Record) scored() bool { return !math.IsNaN(r.Edge) && !math.IsNaN(r.Cloud) }

// subject is the finest label that is known before any model runs.
func (r *Record) subject() string {
	if r.Subject != "" {
		return r.Subject
	}
	return r.Cell
}

// Data is a file of records, in order.
type Data struct {
	Records []Record
	// Pool is the name of the set that holds all records, "" for none.
	Pool string
	// Agreement says that "right" means agreement with the cloud.
	Agreement bool
	// Summary holds published medians instead of records, see Summary.
	Summary []SummaryRow
	// Columns say which column was read as what, for files in the documented
	// format.
	Columns []string
	// LeftOut says which rows are left out, and why; Notes what else the reader
	// of the figures should know.
	LeftOut, Notes []string
}

// lackScore is why a row is left out.
const lackScore = "lack the score of a tier"

// leftOut notes that n rows are left out, if any.
func (d *Data) leftOut(n int, why string) {
	if n > 0 {
		d.LeftOut = append(d.LeftOut, fmt.Sprintf("%d row(s): they %s", n, why))
	}
}

// outside counts the records that are in neither split.
func (d *Data) outside() int {
	n := 0
	for i := range d.Records {
		if d.Records[i].Split == SplitNone {
			n++
		}
	}
	return n
}

// HasSplit reports whether there are both train and test records.
func (d *Data) HasSplit() bool {
	train, test := false, false
	for i := range d.Records {
		train = train || d.Records[i].Split == SplitTrain
		test = test || d.Records[i].Split == SplitTest
	}
	return train && test
}

// Sets lists the names of the sets in order of appearance; the pool comes last.
func (d *Data) Sets() []string {
	var names []string
	seen := map[string]bool{}
	for i := range d.Records {
		if s := d.Records[i].Set; !seen[s] {
			seen[s] = true
			names = append(names, s)
		}
	}
	if d.Pool != "" && len(names) > 1 && !seen[d.Pool] {
		names = append(names, d.Pool)
	}
	return names
}

// Select returns the records of one set, by reference.
func (d *Data) Select(set string) []*Record {
	var out []*Record
	pool := set == d.Pool
	for i := range d.Records {
		if r := &d.Records[i]; pool || r.Set == set {
			out = append(out, r)
		}
	}
	return out
}
