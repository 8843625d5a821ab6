package replay

import (
	"fmt"
	"math"
	"strings"
)

// Columns names the columns of a file in the documented format. An empty name
// takes the first of the usual names that the file has; see columnNames.
type Columns struct {
	Edge, Cloud          string
	Confidence           string
	P1, Margin, NegEnt   string
	Entropy, Agree       string
	EdgeCost, CloudCost  string
	EdgeMS, CloudMS      string
	Task, Subject        string
	Split, ID            string
	Prompt, PromptLength string
	// Set replaces the name of a file without tasks.
	Set string
}

// usual lists, for each meaning, the column names that are recognised without
// being named, best first.
var usual = struct{ edge, cloud, confidence, p1, margin, negent, entropy, agree, edgeCost, cloudCost, edgeMS, cloudMS, task, subject, split, id, prompt, length []string }{
	edge:       []string{"edge", "edge_ok", "edge_score", "edge_correct", "weak_ok", "weak_score", "small_ok"},
	cloud:      []string{"cloud", "cloud_ok", "cloud_score", "cloud_correct", "strong_ok", "strong_score", "large_ok"},
	confidence: []string{"confidence", "conf", "edge_conf", "edge_confidence", "logprob", "edge_logprob"},
	p1:         []string{"p1", "s_p1", "edge_p1"},
	margin:     []string{"margin", "s_margin", "edge_margin"},
	negent:     []string{"negent"},
	entropy:    []string{"entropy", "s_ent", "edge_entropy"},
	agree:      []string{"agree2", "self_agree"},
	edgeCost:   []string{"edge_cost", "edge_usd", "cost_edge"},
	cloudCost:  []string{"cloud_cost", "cloud_usd", "cost_cloud", "cost"},
	edgeMS:     []string{"edge_ms", "edge_latency_ms", "latency_edge"},
	cloudMS:    []string{"cloud_ms", "cloud_latency_ms", "latency_cloud", "latency"},
	task:       []string{"task", "cell", "dataset", "bench", "subject"},
	subject:    []string{"subject", "category", "topic"},
	split:      []string{"split"},
	id:         []string{"id", "idx", "index"},
	prompt:     []string{"prompt", "question", "text"},
	length:     []string{"prompt_chars", "chars", "q_chars", "tokens_in"},
}

// resolve returns the wanted column, or the first usual one of the file in
// small or capital letters, or "".
func resolve(t *table, want string, names []string) (string, error) {
	if want != "" {
		if !t.has(want) {
			return "", fmt.Errorf("%w: there is no column %q; the file has %s", ErrFormat, want, t.names())
		}
		return want, nil
	}
	for _, n := range names {
		for _, have := range t.columns {
			if strings.EqualFold(have, n) {
				return have, nil
			}
		}
	}
	return "", nil
}

func (c Columns) resolve(t *table) (Columns, error) {
	out := Columns{Set: c.Set}
	for _, f := range []struct {
		to    *string
		want  string
		names []string
	}{
		{&out.Edge, c.Edge, usual.edge}, {&out.Cloud, c.Cloud, usual.cloud}, {&out.Confidence, c.Confidence, usual.confidence},
		{&out.P1, c.P1, usual.p1}, {&out.Margin, c.Margin, usual.margin}, {&out.NegEnt, c.NegEnt, usual.negent},
		{&out.Entropy, c.Entropy, usual.entropy}, {&out.Agree, c.Agree, usual.agree},
		{&out.EdgeCost, c.EdgeCost, usual.edgeCost}, {&out.CloudCost, c.CloudCost, usual.cloudCost},
		{&out.EdgeMS, c.EdgeMS, usual.edgeMS}, {&out.CloudMS, c.CloudMS, usual.cloudMS},
		{&out.Task, c.Task, usual.task}, {&out.Subject, c.Subject, usual.subject}, {&out.Split, c.Split, usual.split}, {&out.ID, c.ID, usual.id},
		{&out.Prompt, c.Prompt, usual.prompt}, {&out.PromptLength, c.PromptLength, usual.length},
	} {
		var err error
		if *f.to, err = resolve(t, f.want, f.names); err != nil {
			return out, err
		}
	}
	if out.Edge == "" {
		return out, lacksScore(t, "edge", usual.edge)
	}
	if out.Cloud == "" {
		return out, lacksScore(t, "cloud", usual.cloud)
	}
	return out, nil
}

func lacksScore(t *table, tier string, names []string) error {
	return fmt.Errorf("%w: none of %s, the %s's score; name its column with --%s; the file has %s",
		ErrFormat, strings.Join(names, ", "), tier, tier, t.names())
}

// readColumns reads the documented format. Scores above 1 are divided by the
// largest score of either tier, so that 0..10 and 0..100 become 0..1. Rows
// without both scores are left out.
func readColumns(t *table, stem string, cols Columns) (*Data, error) {
	c, err := cols.resolve(t)
	if err != nil {
		return nil, err
	}
	d := &Data{Pool: "pooled"}
	largest := 1.0
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
	}
	if len(d.Records) == 0 {
		return nil, fmt.Errorf("no row has a score in both columns %q and %q", c.Edge, c.Cloud)
	}
	for i := range d.Records {
		d.Records[i].Edge /= largest
		d.Records[i].Cloud /= largest
	}
	d.note(len(t.rows)-len(d.Records), lackScore)
	if d.HasSplit() {
		d.note(d.outside(), "are neither train nor test")
	}
	return d, nil
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
	switch strings.ToLower(strings.TrimSpace(r.text(c.Split))) {
	case "train", "training", "fit", "calibration", "calib", "cal", "dev", "validation", "valid", "val":
		rec.Split = SplitTrain
	case "test", "testing", "eval", "evaluation", "heldout", "held-out", "held_out", "holdout":
		rec.Split = SplitTest
	}
	return rec
}
