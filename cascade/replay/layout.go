package replay

import (
	"cmp"
	"fmt"
	"strings"
)

// layout is how a file is read beyond the usual names of its columns. Layouts
// are known by the pattern of columns, never by the names of models.
type layout struct {
	// edge and cloud are the scores' columns; "" leaves them to the usual names.
	edge, cloud string
	// small and large are the models' names in columns such as NAME_usd.
	small, large string
	// certain says that the cloud is right by definition: edge is agreement.
	certain bool
	// answers are the columns of two samples whose equality is SignalAgree.
	answers [2]string
	// family begins the names of sets, suffix ends them; byTask says that each
	// task is a set. other is the name where these leave none.
	family, suffix, other string
	byTask                bool
	pool                  string
	// bySubject says that subjects are the cells of calibration.
	bySubject bool
	// grade is the best score of a scale that begins above 1, 0 where the
	// file's largest stands for it.
	grade float64
	note  string
}

// set is the name of a task's set.
func (l *layout) set(task string) string {
	if !l.byTask {
		task = ""
	}
	switch {
	case task == "" && l.family == "":
		return l.other
	case task == "":
		return l.family + l.suffix
	case l.family == "":
		return task + l.suffix
	}
	return l.family + "/" + task + l.suffix
}

// recognise finds a file's layout. Columns that the caller names for the two
// scores make it the documented format.
func recognise(t *table, name string, cols Columns) (layout, error) {
	documented := layout{other: name, byTask: true, pool: "pooled"}
	if cols.Edge != "" || cols.Cloud != "" {
		return documented, nil
	}
	pairName := trimPrefixes(name, "uncbench", "unc")
	signals := t.find("s_p1") != "" || t.find("s_margin") != "" || t.find("s_ent") != ""
	switch usual := t.usual(tiered(edgeWords, scoreNouns...)) != "" && t.usual(tiered(cloudWords, scoreNouns...)) != ""; {
	case usual && t.has("bench", "subject", "weak_ok", "strong_ok"): // RouteLLM
		documented.pool, documented.bySubject = "", true
		if t.has("prompt") {
			documented.suffix = "_subset"
		}
		return documented, nil
	case usual && t.has("question_id", "category", "turn", "weak_score", "strong_score"): // MT-bench
		return layout{family: cmp.Or(cols.Set, "mtbench"), bySubject: true, grade: 10}, nil
	case usual:
		return documented, nil
	case signals && t.has("agree"): // LLM-Uncertainty-Bench
		l := layout{edge: "agree", certain: true, family: "unc/" + pairName, byTask: true, pool: "unc/" + pairName}
		if t.has("s_ok", "l_ok") {
			l.note = `"agree" is the edge's score: --edge s_ok --cloud l_ok evaluates those`
		}
		return l, nil
	case signals && t.has("s_ok", "l_ok"): // the same with gold answers
		return layout{edge: "s_ok", cloud: "l_ok", family: "unc/" + pairName, byTask: true, pool: "unc/" + pairName}, nil
	}
	return pairLayout(t, documented, cols)
}

// pairLayout is a file whose columns of scores have the names of two models, as
// those of RouterArena and of GSM8K's verifiers; the first is the edge.
func pairLayout(t *table, l layout, cols Columns) (layout, error) {
	p, err := findPair(t)
	if err != nil || p == nil {
		return l, err
	}
	edge, cloud := p.models[0], p.models[1]
	l.edge, l.cloud, l.small, l.large = edge.column, cloud.column, edge.name, cloud.name
	l.note = fmt.Sprintf("%q, the first of two models' scores, is the edge's: --edge and --cloud choose otherwise", edge.column)
	l.answers = samples(t, edge.name)
	family := ""
	switch {
	case l.answers[1] != "":
		family = "agree2/"
	case p.noun == "score" && t.find("dataset") != "":
		family = "routerarena/"
	default:
		return l, nil
	}
	l.family = cmp.Or(cols.Set, family+edge.name+"->"+cloud.name)
	l.byTask, l.pool = cols.Task != "", l.family
	return l, nil
}

// samples finds the final answers of two kinds of one model, such as ans_6b_ver
// and ans_6b_ft of 6b_ver.
func samples(t *table, model string) (two [2]string) {
	own := t.find("ans_" + plain(model))
	cut := strings.LastIndex(plain(model), "_")
	if own == "" || cut < 0 {
		return two
	}
	for _, c := range t.columns {
		if c != own && strings.HasPrefix(plain(c), "ans_"+plain(model)[:cut+1]) {
			return [2]string{own, c}
		}
	}
	return two
}

// trimPrefixes drops the first of some words and the joint after it.
func trimPrefixes(s string, words ...string) string {
	for _, w := range words {
		if n := len(w) + 1; len(s) > n && plain(s[:n]) == w+"_" {
			return s[n:]
		}
	}
	return s
}
