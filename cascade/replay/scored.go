package replay

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"text/tabwriter"
)

// Scored are the scored answers of one model and class with equal pools, as `weir
// pools answers` exports them.
type Scored struct {
	Model string `json:"model"`
	Class string `json:"class"`
	// Answers had a choice: of two pools at least, none of them certain.
	Answers int `json:"answers"`
	// Without are those that had none: a session's, the only pool's, or one that
	// stood in for another. Nothing about another pool follows from them.
	Without int            `json:"without_choice"`
	Kinds   map[string]int `json:"label_kinds"` // of Answers
	Chosen  number         `json:"as_chosen"`   // mean score of Answers
	Pools   []Always       `json:"pools"`

	list []scoredAnswer
}

type scoredAnswer struct {
	pool              string
	propensity, score float64
}

// Always is the estimated value of "always this pool" over the answers that had a
// choice.
type Always struct {
	Pool    string `json:"pool"`
	Answers int    `json:"answers"` // that it gave
	IPS     number `json:"ips"`     // by inverse propensity: sum(w y) / n, w = 1/propensity
	SNIPS   number `json:"snips"`   // self-normalised: sum(w y) / sum(w)
	SE      number `json:"se"`      // of SNIPS
	// Weight is sum(w) / n. It is near 1 where the pool might always have been
	// chosen, less where it was absent or beyond a limit for some; IPS takes those
	// as 0, SNIPS leaves them out.
	Weight number `json:"weight"`
	// Effective is how many answers of equal weight would tell as much.
	Effective number `json:"effective"`
}

// OpenScored reads an export of scored answers, as CSV or JSON.
func OpenScored(path string) ([]*Scored, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t, err := readTable(f)
	if err == nil {
		var s []*Scored
		if s, err = readScored(t); err == nil {
			return s, nil
		}
	}
	return nil, fmt.Errorf("%s: %w", path, err)
}

func readScored(t *table) ([]*Scored, error) {
	if !t.has("model", "class", "pool", "propensity", "score") {
		return nil, fmt.Errorf("want the columns model, class, pool, propensity and score, as 'weir pools answers' writes them; there are %s", t.names())
	}
	type cell struct{ model, class string }
	cells := map[cell]*Scored{}
	for i, values := range t.rows {
		r := row{t: t, cells: values}
		a := scoredAnswer{r.text("pool"), r.number("propensity", math.NaN()), r.number("score", math.NaN())}
		if r.err == nil && !(a.propensity >= 0 && a.propensity <= 1 && a.score >= 0 && a.score <= 1) {
			r.err = fmt.Errorf("propensity and score must lie between 0 and 1")
		}
		if r.err != nil {
			return nil, fmt.Errorf("row %d: %w", i+1, r.err)
		}
		of := cell{r.text("model"), r.text("class")}
		s := cells[of]
		if s == nil {
			s = &Scored{Model: of.model, Class: of.class, Kinds: map[string]int{}}
			cells[of] = s
		}
		if a.propensity == 0 || a.propensity == 1 {
			s.Without++
			continue
		}
		s.list = append(s.list, a)
		s.Kinds[cmp.Or(r.text("kind"), "unnamed")]++
	}
	list := slices.SortedFunc(maps.Values(cells), func(a, b *Scored) int { return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Class, b.Class)) })
	for _, s := range list {
		s.estimate()
	}
	return list, nil
}

// estimate judges each pool by its own answers (Swaminathan and Joachims, "The
// self-normalized estimator for counterfactual learning", 2015).
func (s *Scored) estimate() {
	s.Answers = len(s.list)
	n, sum := float64(len(s.list)), 0.0
	byPool := map[string][]scoredAnswer{}
	for _, a := range s.list {
		sum += a.score
		byPool[a.pool] = append(byPool[a.pool], a)
	}
	s.Chosen, s.Pools = number(sum/n), []Always{}
	for _, pool := range slices.Sorted(maps.Keys(byPool)) {
		s.Pools = append(s.Pools, always(pool, byPool[pool], n))
	}
}

func always(pool string, own []scoredAnswer, n float64) Always {
	weight, squares, value := 0.0, 0.0, 0.0
	for _, a := range own {
		w := 1 / a.propensity
		weight, squares, value = weight+w, squares+w*w, value+w*a.score
	}
	mean, spread := value/weight, 0.0
	for _, a := range own {
		d := (a.score - mean) / a.propensity
		spread += d * d
	}
	return Always{pool, len(own), number(value / n), number(mean), number(math.Sqrt(spread) / weight), number(weight / n), number(weight * weight / squares)}
}

// writeScored writes what always each pool would have been worth.
func writeScored(w io.Writer, all []*Scored, asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(w)
		enc.SetIndent("", " ")
		return enc.Encode(struct {
			Models []*Scored `json:"models"`
		}{all})
	}
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tab, "MODEL\tCLASS\tALWAYS\tANSWERS\tSNIPS\tSE\tIPS\tWEIGHT\tEFFECTIVE")
	for _, s := range all {
		fmt.Fprintf(tab, "%s\t%s\t(as chosen)\t%d\t%s\t\t\t\t\n", s.Model, s.Class, s.Answers, show(float64(s.Chosen)))
		for _, p := range s.Pools {
			fmt.Fprintf(tab, "%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%.0f\n", s.Model, s.Class, p.Pool, p.Answers, show(float64(p.SNIPS)), show(float64(p.SE)), show(float64(p.IPS)),
				show(float64(p.Weight)), float64(p.Effective))
		}
	}
	if err := tab.Flush(); err != nil {
		return err
	}
	for _, s := range all {
		kinds := ""
		for _, k := range slices.Sorted(maps.Keys(s.Kinds)) {
			kinds += fmt.Sprintf(", %d by %s", s.Kinds[k], k)
		}
		if _, err := fmt.Fprintf(w, "%s %s: %d scored answers%s; %d more had no choice and are left out\n", s.Model, s.Class, s.Answers, kinds, s.Without); err != nil {
			return err
		}
	}
	return nil
}
