package replay

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/weirhq/weir/cascade/verifier"
)

// Columns names the columns of a file in the documented format. An empty name
// takes the first of the usual names that the file has; see columnNames.
type Columns struct {
	Edge, Cloud          string
	Confidence           string
	P1, Margin, NegEnt   string
	Entropy, Agree       string
	Votes                string
	EdgeCost, CloudCost  string
	EdgeMS, CloudMS      string
	Task, Subject        string
	Split, ID            string
	Prompt, PromptLength string
	// Set replaces the name of a file without tasks.
	Set string
}

// Words that files use for the two tiers.
var (
	edgeWords  = []string{"edge", "weak", "small"}
	cloudWords = []string{"cloud", "strong", "large"}
)

// tiered combines words and nouns in both orders, nouns first; an empty noun is
// the word alone.
func tiered(words []string, nouns ...string) []string {
	var names []string
	for _, noun := range nouns {
		for _, w := range words {
			if noun == "" {
				names = append(names, w)
			} else {
				names = append(names, w+"_"+noun, noun+"_"+w)
			}
		}
	}
	return names
}

// field is one meaning of a column: where its name goes, its flag, and the
// names that are recognised without being told, best first.
type field struct {
	to          *string
	flag, about string
	usual       []string
}

func (c *Columns) fields() []field {
	score := []string{"ok", "correct", "right", "score", "accuracy", ""}
	confidence := []string{"confidence", "conf", "logprob", "prob"}
	return []field{
		{&c.Edge, "edge", "the edge's score, 0..1 or right/wrong", tiered(edgeWords, score...)},
		{&c.Cloud, "cloud", "the cloud's score", tiered(cloudWords, score...)},
		{&c.Confidence, "confidence", "the edge's confidence, a probability, log-probability or score", append(confidence, tiered(edgeWords, confidence...)...)},
		{&c.P1, "p1", "probability of the chosen option", append([]string{"p1", "s_p1"}, tiered(edgeWords, "p1")...)},
		{&c.Margin, "margin", "probability of the best minus the second option", append([]string{"margin", "s_margin"}, tiered(edgeWords, "margin")...)},
		{&c.NegEnt, "negent", "negative entropy", append([]string{"negent"}, tiered(edgeWords, "negent")...)},
		{&c.Entropy, "entropy", "entropy, or another uncertainty", append([]string{"entropy", "s_ent"}, tiered(edgeWords, "entropy")...)},
		{&c.Agree, "agree", "1 when a second sample agreed", []string{"agree2", "self_agree"}},
		{&c.Votes, "votes", "the edge's yes on its own answer, of at most 10 samples", append([]string{"votes"}, tiered(edgeWords, "votes")...)},
		{&c.EdgeCost, "edge-cost", "the edge's cost, dollars", tiered(edgeWords, "cost", "usd")},
		{&c.CloudCost, "cloud-cost", "the cloud's cost, dollars", append(tiered(cloudWords, "cost", "usd"), "cost")},
		{&c.EdgeMS, "edge-ms", "the edge's latency, ms", tiered(edgeWords, "ms", "latency_ms", "latency")},
		{&c.CloudMS, "cloud-ms", "the cloud's latency, ms", append(tiered(cloudWords, "ms", "latency_ms", "latency"), "latency")},
		{&c.Task, "task", "task; each is a set of its own, beside 'pooled'", []string{"task", "cell", "dataset", "bench", "subject"}},
		{&c.Subject, "subject", "subject within a task, for the policies that read the prompt alone", []string{"subject", "category", "topic"}},
		{&c.Split, "split", "train or test; without it rows are a stream", []string{"split"}},
		{&c.ID, "id", "name of the row", []string{"id", "idx", "index"}},
		{&c.Prompt, "prompt", "text of the prompt", []string{"prompt", "question", "text"}},
		{&c.PromptLength, "prompt-chars", "length of the prompt", []string{"prompt_chars", "chars", "q_chars", "tokens_in"}},
	}
}

// resolve returns the wanted column, or the first usual one that the file has,
// or "".
func resolve(t *table, want string, usual []string) (string, error) {
	if want != "" {
		if !t.has(want) {
			return "", fmt.Errorf("%w: there is no column %q; the file has %s", ErrFormat, want, t.names())
		}
		return want, nil
	}
	for _, name := range usual {
		for _, have := range t.columns {
			if plain(have) == name {
				return have, nil
			}
		}
	}
	return "", nil
}

var joiner = strings.NewReplacer(" ", "_", "-", "_", ".", "_")

// plain is a column's name in small letters, its words joined by underscores.
func plain(name string) string { return joiner.Replace(strings.ToLower(name)) }

// resolve returns the columns that t has, and says which they are.
func (c Columns) resolve(t *table) (out Columns, found []string, err error) {
	out.Set = c.Set
	to := out.fields()
	for i, f := range c.fields() {
		if *to[i].to, err = resolve(t, *f.to, f.usual); err != nil {
			return out, nil, err
		}
		if *to[i].to != "" {
			found = append(found, f.flag+"="+*to[i].to)
		}
	}
	if out.Edge == "" {
		return out, nil, lacksScore(t, "edge", edgeWords)
	}
	if out.Cloud == "" {
		return out, nil, lacksScore(t, "cloud", cloudWords)
	}
	return out, found, nil
}

func lacksScore(t *table, tier string, words []string) error {
	return fmt.Errorf("%w: no %s_ok, %s_ok or %s_ok, the %s's score; name its column with --%s; the file has %s",
		ErrFormat, words[0], words[1], words[2], tier, tier, t.names())
}

// readColumns reads the documented format. Scores above 1 are divided by the
// largest score of either tier, so that 0..10 and 0..100 become 0..1. Rows
// without both scores are left out.
func readColumns(t *table, stem string, cols Columns) (*Data, error) {
	c, found, err := cols.resolve(t)
	if err != nil {
		return nil, err
	}
	d := &Data{Pool: "pooled", Columns: found}
	largest := 1.0
	var splits []string
	for i, cells := range t.rows {
		r := row{t: t, cells: cells}
		rec := c.record(&r, stem)
		if r.err != nil {
			return nil, fmt.Errorf("row %d: %w", i+1, r.err)
		}
		if !rec.scored() {
			continue
		}
		for _, s := range []float64{rec.Edge, rec.Cloud} {
			if s < 0 || math.IsInf(s, 1) {
				return nil, fmt.Errorf("row %d: columns %q and %q hold the score %v: want 0 or more", i+1, c.Edge, c.Cloud, s)
			}
			largest = max(largest, s)
		}
		d.Records = append(d.Records, rec)
		splits = append(splits, r.text(c.Split))
	}
	if len(d.Records) == 0 {
		return nil, fmt.Errorf("no row has a score in both columns %q and %q", c.Edge, c.Cloud)
	}
	if slices.ContainsFunc(d.Records, func(r Record) bool { return r.Set == d.Pool }) { // a task has that name
		d.Pool = ""
	}
	d.leftOut(len(t.rows)-len(d.Records), lackScore)
	d.scaleScores(largest)
	if c.Split != "" {
		d.split(c.Split, splits)
	}
	return d, nil
}

func (d *Data) scaleScores(largest float64) {
	if largest <= 1 {
		return
	}
	d.Notes = append(d.Notes, fmt.Sprintf("scores go up to %v: all are divided by it", largest))
	for i := range d.Records {
		d.Records[i].Edge /= largest
		d.Records[i].Cloud /= largest
	}
}

func (c Columns) record(r *row, stem string) Record {
	num := func(col string) float64 {
		if col == "" {
			return math.NaN()
		}
		return r.number(col, math.NaN())
	}
	rec := newRecord()
	rec.Edge, rec.Cloud = num(c.Edge), num(c.Cloud)
	rec.Signals = [signalCount]float64{num(c.Confidence), num(c.P1), num(c.Margin), num(c.NegEnt), num(c.Agree)}
	if math.IsNaN(rec.Signals[SignalNegEnt]) {
		rec.Signals[SignalNegEnt] = -num(c.Entropy)
	}
	if v := num(c.Votes); v >= 0 && v <= verifier.MostVotes && math.Trunc(v) == v { // other numbers are other votes
		rec.Votes = v
	}
	rec.EdgeCost, rec.CloudCost, rec.EdgeMS, rec.CloudMS = num(c.EdgeCost), num(c.CloudCost), num(c.EdgeMS), num(c.CloudMS)
	rec.Cell = r.text(c.Task)
	rec.Set = rec.Cell
	if rec.Set == "" {
		rec.Set = c.Set
	}
	if rec.Set == "" {
		rec.Set = stem
	}
	if c.Subject != c.Task {
		rec.Subject = r.text(c.Subject)
	}
	rec.ID, rec.Prompt = r.text(c.ID), r.text(c.Prompt)
	rec.Chars = num(c.PromptLength)
	if rec.Prompt != "" && math.IsNaN(rec.Chars) {
		rec.Chars = float64(len([]rune(rec.Prompt)))
	}
	return rec
}
