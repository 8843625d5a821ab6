package replay

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/weirhq/weir/cascade/verifier"
)

// badShare is the share of unreadable rows beyond which a file is refused.
const badShare = .01

// readOutcomes makes records of a table's rows. Rows without both scores are
// left out, as are those that cannot be read while they are few.
func readOutcomes(t *table, l layout, cols Columns) (*Data, error) {
	c, found, err := cols.resolve(t, &l)
	if err != nil {
		return nil, err
	}
	d := &Data{Pool: l.pool, Columns: found, Agreement: l.certain}
	if l.note != "" {
		d.Notes = append(d.Notes, l.note)
	}
	d.Notes = append(d.Notes, c.dropText(t, &cols)...)
	var splits []string
	bad := badRows{of: len(t.rows)}
	for i, cells := range t.rows {
		r := row{t: t, cells: cells, err: t.torn[i]}
		rec := c.record(&r, &l)
		if r.err == nil {
			r.err = rec.meant(&c)
		}
		switch {
		case r.err != nil:
			bad.add(i, r.err)
		case rec.scored():
			d.Records = append(d.Records, rec)
			splits = append(splits, r.text(c.Split))
		}
	}
	if err := bad.tooMany(); err != nil {
		return nil, err
	}
	if len(d.Records) == 0 {
		return nil, fmt.Errorf("no row has a score in both columns %q and %q", c.Edge, c.Cloud)
	}
	d.leftOut(len(t.rows)-bad.n-len(d.Records), lackScore)
	d.leftOut(bad.n, fmt.Sprintf("cannot be read; the first is %v", bad.first))
	d.checkPool()
	d.intoRange(l.grade)
	if c.Split != "" {
		d.split(c.Split, splits)
	}
	return d, nil
}

// badRows counts the rows that cannot be read.
type badRows struct {
	n, of int
	first error
}

func (b *badRows) add(i int, err error) {
	if b.n++; b.n == 1 {
		b.first = fmt.Errorf("row %d: %w", i+1, err)
	}
}

func (b *badRows) tooMany() error {
	switch {
	case float64(b.n) <= badShare*float64(b.of):
		return nil
	case b.n == 1:
		return b.first
	}
	return fmt.Errorf("%d of %d rows cannot be read; the first is %w", b.n, b.of, b.first)
}

// checkPool gives the pool up where a task has its name.
func (d *Data) checkPool() {
	if slices.ContainsFunc(d.Records, func(r Record) bool { return r.Set == d.Pool && d.Pool != "" }) && len(d.Sets()) > 1 {
		d.Notes = append(d.Notes, fmt.Sprintf("a task is named %q: there is no set of all tasks", d.Pool))
		d.Pool = ""
	}
}

// dropText gives up columns of numbers that were found by their usual names and
// hold none, such as latencies in words.
func (c *Columns) dropText(t *table, named *Columns) (notes []string) {
	const rows = 1000 // that are looked at
	asked := named.fields()
	for i, f := range c.fields() {
		if *f.to == "" || *asked[i].to != "" || f.text || f.flag == "edge" || f.flag == "cloud" {
			continue
		}
		numbers, texts := 0, 0
		for k := 0; k < len(t.rows) && k < rows; k++ {
			r := row{t: t, cells: t.rows[k]}
			switch v := r.number(*f.to, math.NaN()); {
			case r.err != nil:
				texts++
			case !math.IsNaN(v):
				numbers++
			}
		}
		if texts > numbers {
			notes = append(notes, fmt.Sprintf("column %q holds text: it is not read as %s", *f.to, f.flag))
			*f.to = ""
		}
	}
	return notes
}

func (c Columns) record(r *row, l *layout) Record {
	num := func(col string) float64 {
		if col == "" {
			return math.NaN()
		}
		return r.number(col, math.NaN())
	}
	rec := newRecord()
	rec.Edge, rec.Cloud = num(c.Edge), num(c.Cloud)
	if l.certain {
		rec.Cloud = 1
	}
	rec.Signals = [signalCount]float64{num(c.Confidence), num(c.P1), num(c.Margin), num(c.NegEnt), num(c.Agree)}
	if math.IsNaN(rec.Signals[SignalNegEnt]) {
		rec.Signals[SignalNegEnt] = -num(c.Entropy)
	}
	if l.answers[1] != "" && math.IsNaN(rec.Signals[SignalAgree]) {
		rec.Signals[SignalAgree] = b2f(r.text(l.answers[0]) == r.text(l.answers[1]))
	}
	if v := num(c.Votes); v >= 0 && v <= verifier.MostVotes && math.Trunc(v) == v { // other numbers are other votes
		rec.Votes = v
	}
	rec.CloudTTFT = num(c.CloudTTFT)
	rec.SwapEdge, rec.SwapConfidence = num(c.SwapEdge), num(c.SwapConfidence)
	rec.EdgeCost, rec.CloudCost, rec.EdgeMS, rec.CloudMS = num(c.EdgeCost), num(c.CloudCost), num(c.EdgeMS), num(c.CloudMS)
	rec.Cell = strings.TrimSpace(r.text(c.Task))
	rec.Set = l.set(rec.Cell)
	if c.Subject != c.Task {
		rec.Subject = strings.TrimSpace(r.text(c.Subject))
	}
	if l.bySubject {
		rec.Cell = rec.Subject
	}
	rec.ID, rec.Prompt = r.text(c.ID), r.text(c.Prompt)
	rec.Chars = num(c.PromptLength)
	if rec.Prompt != "" && math.IsNaN(rec.Chars) {
		rec.Chars = float64(len([]rune(rec.Prompt)))
	}
	return rec
}

// meant is an error for scores that no scale has. Some metrics, as METEOR with
// its penalty, go a little below zero.
func (rec *Record) meant(c *Columns) error {
	for _, s := range []struct {
		column string
		v      float64
	}{{c.Edge, rec.Edge}, {c.Cloud, rec.Cloud}} {
		if s.v < -1 || math.IsInf(s.v, 0) {
			return fmt.Errorf("column %q: the score is %v: want 0 or more", s.column, s.v)
		}
	}
	return nil
}
