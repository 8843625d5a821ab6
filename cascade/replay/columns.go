package replay

import (
	"cmp"
	"fmt"
	"strings"
)

// Columns names the columns of a file in the documented format. An empty name
// takes the first of the usual names that the file has; see columnNames.
type Columns struct {
	Edge, Cloud         string
	Confidence          string
	P1, Margin, NegEnt  string
	Entropy, Agree      string
	Votes               string
	EdgeCost, CloudCost string
	EdgeMS, CloudMS     string
	CloudTTFT           string
	// Another edge model, for the fault edge-swap.
	SwapEdge, SwapConfidence string
	Task, Subject            string
	Split, ID                string
	Prompt, PromptLength     string
	// Set replaces the name of a file without tasks.
	Set string
}

// Words that files use for the two tiers.
var (
	edgeWords  = []string{"edge", "weak", "small"}
	cloudWords = []string{"cloud", "strong", "large"}
)

// scoreNouns follow a tier's word in the name of its score's column, best first.
var scoreNouns = []string{"ok", "correct", "right", "score", "accuracy", ""}

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
	text        bool // the column need not hold numbers
}

func (c *Columns) fields() []field { return c.named(edgeWords, cloudWords) }

// named are the fields with other words for the two tiers.
func (c *Columns) named(edgeWords, cloudWords []string) []field {
	confidence := []string{"confidence", "conf", "logprob", "prob"}
	return []field{
		{&c.Edge, "edge", "the edge's score, 0..1 or right/wrong", tiered(edgeWords, scoreNouns...), false},
		{&c.Cloud, "cloud", "the cloud's score", tiered(cloudWords, scoreNouns...), false},
		{&c.Confidence, "confidence", "the edge's confidence, a probability, log-probability or score", append(confidence, tiered(edgeWords, confidence...)...), false},
		{&c.P1, "p1", "probability of the chosen option", append([]string{"p1", "s_p1"}, tiered(edgeWords, "p1")...), false},
		{&c.Margin, "margin", "probability of the best minus the second option", append([]string{"margin", "s_margin"}, tiered(edgeWords, "margin")...), false},
		{&c.NegEnt, "negent", "negative entropy", append([]string{"negent"}, tiered(edgeWords, "negent")...), false},
		{&c.Entropy, "entropy", "entropy, or another uncertainty", append([]string{"entropy", "s_ent"}, tiered(edgeWords, "entropy")...), false},
		{&c.Agree, "agree", "1 when a second sample agreed", []string{"agree2", "self_agree"}, false},
		{&c.Votes, "votes", "the edge's yes on its own answer, of at most 10 samples", append([]string{"votes"}, tiered(edgeWords, "votes")...), false},
		{&c.EdgeCost, "edge-cost", "the edge's cost, dollars", tiered(edgeWords, "cost", "usd"), false},
		{&c.CloudCost, "cloud-cost", "the cloud's cost, dollars", append(tiered(cloudWords, "cost", "usd"), "cost"), false},
		{&c.EdgeMS, "edge-ms", "the edge's latency, ms", tiered(edgeWords, "ms", "latency_ms", "latency"), false},
		{&c.CloudMS, "cloud-ms", "the cloud's latency, ms", append(tiered(cloudWords, "ms", "latency_ms", "latency"), "latency"), false},
		{&c.CloudTTFT, "cloud-ttft-ms", "the cloud's time to its first token, ms", tiered(cloudWords, "ttft_ms", "ttft"), false},
		{&c.SwapEdge, "swap-edge", "another edge model's score, for the fault edge-swap", tiered([]string{"swap"}, scoreNouns[:5]...), false},
		{&c.SwapConfidence, "swap-confidence", "its confidence", tiered([]string{"swap"}, confidence...), false},
		{&c.Task, "task", "task; each is a set of its own, beside 'pooled'", []string{"task", "cell", "dataset", "bench", "subject"}, true},
		{&c.Subject, "subject", "subject within a task, for the policies that read the prompt alone", []string{"subject", "category", "topic"}, true},
		{&c.Split, "split", "train or test; without it rows are a stream", []string{"split"}, true},
		{&c.ID, "id", "name of the row", []string{"id", "idx", "index", "global_index", "question_id"}, true},
		{&c.Prompt, "prompt", "text of the prompt", []string{"prompt", "question", "text"}, true},
		{&c.PromptLength, "prompt-chars", "length of the prompt", []string{"prompt_chars", "chars", "q_chars", "tokens_in"}, false},
	}
}

var joiner = strings.NewReplacer(" ", "_", "-", "_", ".", "_")

// plain is a column's name in small letters, its words joined by underscores.
func plain(name string) string { return joiner.Replace(strings.ToLower(name)) }

// resolve returns the columns that t has, by the caller's word, then by the
// layout, then by the usual names. found says which they are.
func (c Columns) resolve(t *table, l *layout) (out Columns, found []string, err error) {
	out.Set = c.Set
	c.Edge, c.Cloud = cmp.Or(c.Edge, l.edge), cmp.Or(c.Cloud, l.cloud)
	to := out.fields()
	for i, f := range c.named(words(edgeWords, l.small), words(cloudWords, l.large)) {
		column := *f.to
		switch {
		case column != "" && !t.exact(column):
			if column = t.find(column); column == "" {
				return out, nil, fmt.Errorf("%w: there is no column %q; the file has %s", ErrFormat, *f.to, t.names())
			}
		case column == "" && !(l.certain && f.flag == "cloud"):
			column = t.usual(f.usual)
		}
		if *to[i].to = column; column != "" {
			found = append(found, f.flag+"="+column)
		}
	}
	if out.Edge == "" {
		return out, nil, lacksScore(t, "edge", edgeWords)
	}
	if out.Cloud == "" && !l.certain {
		return out, nil, lacksScore(t, "cloud", cloudWords)
	}
	return out, found, nil
}

// words puts a model's name before the words for its tier.
func words(tier []string, name string) []string {
	if name == "" {
		return tier
	}
	return append([]string{plain(name)}, tier...)
}

func lacksScore(t *table, tier string, words []string) error {
	return fmt.Errorf("%w: no %s_ok, %s_ok or %s_ok, the %s's score; name its column with --%s; the file has %s",
		ErrFormat, words[0], words[1], words[2], tier, tier, t.names())
}
