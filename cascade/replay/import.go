package replay

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
)

// ErrFormat says that a file has neither the documented columns nor those of a
// known data set.
var ErrFormat = errors.New("columns are not known")

// format is a known file layout: the columns that it is known by, the name of
// its pooled set, and how a row becomes a record.
type format struct {
	columns   []string
	pool      func(stem string) string
	agreement bool
	record    func(r *row, stem string) Record
}

var formats = []format{
	{columns: []string{"bench", "subject", "weak_ok", "strong_ok", "prompt"}, record: routeLLMPrompt},
	{columns: []string{"bench", "subject", "weak_ok", "strong_ok", "prompt_chars"}, record: routeLLM},
	{columns: []string{"category", "weak_score", "strong_score", "prompt_chars"}, record: mtBench},
	{columns: []string{"ok_6b_ver", "ok_175b_ver", "ans_6b_ft", "ans_6b_ver"}, record: gradeSchool},
	{columns: []string{"dataset", "haiku_score", "gemini_score", "q_chars"}, record: routerArena},
	{columns: []string{"task", "s_p1", "s_margin", "s_ent", "agree"}, record: uncBench, pool: uncPair, agreement: true},
}

// Open reads a file of outcomes. cols names the columns of a file in the
// documented format; where it is zero the known layouts are tried first.
func Open(path string, cols Columns) (*Data, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	d, err := Read(f, stem(path), cols)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return d, nil
}

// Read is Open for a stream; name stands for the file's name.
func Read(r io.Reader, name string, cols Columns) (*Data, error) {
	t, err := readTable(r)
	if err != nil {
		return nil, err
	}
	if len(t.rows) == 0 {
		return nil, errors.New("no rows")
	}
	if t.has("median_cheap_auroc", "median_benefit_auroc") {
		return readSummary(t)
	}
	if cols.Set != "" {
		name = cols.Set
	}
	if cols == (Columns{Set: cols.Set}) {
		for _, f := range formats {
			if t.has(f.columns...) {
				return f.read(t, name)
			}
		}
	}
	return readColumns(t, name, cols)
}

func (f format) read(t *table, stem string) (*Data, error) {
	d := &Data{Agreement: f.agreement}
	if f.pool != nil {
		d.Pool = f.pool(stem)
	}
	for i, cells := range t.rows {
		r := row{t: t, cells: cells}
		rec := f.record(&r, stem)
		if r.err == nil && !rec.scored() {
			continue
		}
		if err := checkRecord(&rec, &r); err != nil {
			return nil, fmt.Errorf("row %d: %w", i+1, err)
		}
		d.Records = append(d.Records, rec)
	}
	if len(d.Records) == 0 {
		return nil, errors.New("no row has the scores of both tiers")
	}
	d.leftOut(len(t.rows)-len(d.Records), lackScore)
	return d, nil
}

func checkRecord(rec *Record, r *row) error {
	if r.err != nil {
		return r.err
	}
	for _, v := range []float64{rec.Edge, rec.Cloud} {
		// Some metrics (METEOR with a penalty) go a little below zero.
		if !(v >= -1 && v <= 1) {
			return fmt.Errorf("score %v is not between 0 and 1", v)
		}
	}
	return nil
}

func routeLLM(r *row, _ string) Record {
	rec := newRecord()
	rec.Set, rec.Cell = r.text("bench"), r.text("subject")
	rec.ID = rec.Cell + "/" + r.text("idx")
	rec.Edge, rec.Cloud = r.number("weak_ok", math.NaN()), r.number("strong_ok", math.NaN())
	rec.Chars = r.number("prompt_chars", math.NaN())
	return rec
}

func routeLLMPrompt(r *row, stem string) Record {
	rec := routeLLM(r, stem)
	rec.Set += "_subset"
	rec.Prompt = r.text("prompt")
	rec.Chars = float64(len([]rune(rec.Prompt)))
	return rec
}

func mtBench(r *row, _ string) Record {
	rec := newRecord()
	rec.Set, rec.Cell = "mtbench", r.text("category")
	rec.ID = r.text("question_id") + "/" + r.text("turn")
	rec.Edge, rec.Cloud = r.number("weak_score", math.NaN())/10, r.number("strong_score", math.NaN())/10
	rec.Chars = r.number("prompt_chars", math.NaN())
	return rec
}

func gradeSchool(r *row, _ string) Record {
	rec := newRecord()
	rec.Set, rec.Cell, rec.ID = "agree2/6b_ver->175b_ver", "gsm8k", r.text("idx")
	rec.Edge, rec.Cloud = r.number("ok_6b_ver", math.NaN()), r.number("ok_175b_ver", math.NaN())
	rec.Chars = r.number("q_chars", math.NaN())
	rec.Signals[SignalAgree] = b2f(r.text("ans_6b_ft") == r.text("ans_6b_ver"))
	return rec
}

func routerArena(r *row, _ string) Record {
	rec := newRecord()
	rec.Set, rec.Cell, rec.ID = "routerarena/haiku->gemini", r.text("dataset"), r.text("global_index")
	rec.Edge, rec.Cloud = r.number("haiku_score", math.NaN()), r.number("gemini_score", math.NaN())
	rec.EdgeCost, rec.CloudCost = r.number("haiku_usd", math.NaN()), r.number("gemini_usd", math.NaN())
	rec.Chars = r.number("q_chars", math.NaN())
	return rec
}

func uncPair(stem string) string { return "unc/" + strings.TrimPrefix(stem, "uncbench_") }

func uncBench(r *row, stem string) Record {
	rec := newRecord()
	rec.Cell, rec.ID = r.text("task"), r.text("id")
	rec.Set = uncPair(stem) + "/" + rec.Cell
	rec.Edge, rec.Cloud = r.number("agree", math.NaN()), 1
	rec.Signals[SignalP1] = r.number("s_p1", math.NaN())
	rec.Signals[SignalMargin] = r.number("s_margin", math.NaN())
	rec.Signals[SignalNegEnt] = -r.number("s_ent", math.NaN())
	return rec
}

func b2f(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
