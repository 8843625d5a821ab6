package replay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"regexp"
	"slices"

	"github.com/spf13/pflag"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/learn"
	"github.com/weirhq/weir/cascade/measure"
	"github.com/weirhq/weir/cascade/verifier"
	"github.com/weirhq/weir/internal/cli"
)

// LabelledAnswer is one answer of the edge model with its label, and the
// cloud's where it is known (NaN otherwise).
type LabelledAnswer struct {
	Signals  cascade.Signals
	LogProbs []float64 // of the answer's tokens one by one, nil where only sums are known or one is missing
	Edge     float64
	Cloud    float64
	Votes    float64 // the edge model's yes on the answer; NaN where it was not asked
}

// ReadAnswers reads labelled answers as CSV or JSON lines, gzipped or not:
// edge_ok (or edge, right), optionally cloud_ok (or cloud) and votes, and either logprobs
// (and margins), lists with one value a token, or tokens, sum_logprob and
// min_logprob. An answer with a value missing in logprobs (null, NaN) has no usable
// signals. texts, a list with each token's text, tells reasoning from the
// answer, and where form is "json" values from structure.
func ReadAnswers(r io.Reader) ([]LabelledAnswer, error) {
	t, err := readTable(r)
	if err != nil {
		return nil, err
	}
	edge := t.usual([]string{"edge_ok", "edge", "right"})
	cloud := t.usual([]string{"cloud_ok", "cloud"})
	votes := t.usual([]string{"votes"})
	lists, sums := t.has("logprobs"), t.has("tokens", "sum_logprob", "min_logprob")
	if edge == "" || (!lists && !sums) {
		return nil, fmt.Errorf("%w: want edge_ok and either logprobs or tokens, sum_logprob and min_logprob", ErrFormat)
	}
	var out []LabelledAnswer
	for i, cells := range t.rows {
		r := row{t: t, cells: cells}
		a := LabelledAnswer{Edge: r.number(edge, math.NaN()), Cloud: math.NaN(), Votes: math.NaN()}
		if cloud != "" {
			a.Cloud = r.number(cloud, math.NaN())
		}
		if votes != "" {
			a.Votes = r.number(votes, math.NaN())
		}
		if lists {
			a.Signals, a.LogProbs, err = listSignals(&r)
		} else {
			a.Signals = sumSignals(&r)
		}
		if err = errors.Join(err, r.err); err != nil {
			return nil, fmt.Errorf("row %d: %w", i+1, err)
		}
		if !(a.Edge >= 0 && a.Edge <= 1) {
			return nil, fmt.Errorf("row %d: edge label %v is not between 0 and 1", i+1, a.Edge)
		}
		out = append(out, a)
	}
	return out, nil
}

func listSignals(r *row) (_ cascade.Signals, answer []float64, _ error) {
	var logprobs, margins []listed
	var texts []string
	for _, list := range []struct {
		name string
		to   any
	}{{"logprobs", &logprobs}, {"margins", &margins}, {"texts", &texts}} {
		raw := r.text(list.name)
		if raw == "" && list.name != "logprobs" {
			continue
		}
		cell := []byte(raw)
		quoteBare(cell)
		if err := json.Unmarshal(cell, list.to); err != nil {
			return cascade.Signals{}, nil, fmt.Errorf("%s: %w", list.name, err)
		}
	}
	if texts != nil && len(texts) != len(logprobs) {
		return cascade.Signals{}, nil, fmt.Errorf("texts has %d entries, logprobs %d", len(texts), len(logprobs))
	}
	var acc cascade.Accumulator
	if r.text("form") == "json" {
		acc.ExpectJSON()
	}
	for i, lp := range logprobs {
		t := cascade.Token{LogProb: float64(lp), Margin: math.NaN(), Entropy: math.NaN()}
		if i < len(margins) {
			t.Margin = float64(margins[i])
		}
		text := ""
		if texts != nil {
			text = texts[i]
		}
		if acc.AddText([]byte(text), t) == cascade.SpanAnswer {
			answer = append(answer, float64(lp))
		}
	}
	s := acc.Signals()
	if !s.Usable {
		answer = nil
	}
	return s, answer, nil
}

func sumSignals(r *row) cascade.Signals {
	s := cascade.Signals{Tokens: int(r.number("tokens", 0)), SumLogProb: r.number("sum_logprob", math.NaN()), MinLogProb: r.number("min_logprob", math.NaN())}
	s.MeanLogProb = s.SumLogProb / float64(s.Tokens)
	s.Usable = s.Tokens > 0 && s.SumLogProb <= 0 && s.MinLogProb <= 0
	return s
}

// Fit is a calibration with what it achieves on answers that it was not fitted
// on (five folds).
type Fit struct {
	Calibration cascade.Calibration
	AUROC, ECE  float64
	// Escalated is the share below the threshold, Recovered the share of the
	// accuracy gap that escalating it recovers (NaN without cloud labels).
	Escalated, Recovered float64
}

// Calibrate fits a calibration and sets its threshold to the highest that
// escalates at most the share rate of these answers.
func Calibrate(answers []LabelledAnswer, rate float64, features ...cascade.Feature) (Fit, error) {
	samples := make([]cascade.Sample, len(answers))
	cloud, clouds := 0.0, 0
	for i, a := range answers {
		samples[i] = cascade.Sample{Signals: a.Signals, Right: a.Edge}
		if !math.IsNaN(a.Cloud) {
			cloud += a.Cloud
			clouds++
		}
	}
	c, err := cascade.FitPlatt(samples, features...)
	if err != nil {
		return Fit{}, err
	}
	if clouds > 0 {
		c.CloudAccuracy = cloud / float64(clouds)
	}
	out, err := outOfFold(samples, features)
	if err != nil {
		return Fit{}, err
	}
	p, y := known(out, edgeLabels(answers))
	right := make([]bool, len(y))
	for i := range y {
		right[i] = y[i] >= .5
	}
	c.Threshold = math.Max(0, math.Min(1, math.Round(1e4*quantile(p, rate))/1e4))
	f := Fit{Calibration: c, AUROC: measure.AUROC(p, right), ECE: measure.ECE(measure.Reliability(p, y, nil, 10)), Recovered: math.NaN()}
	f.count(answers, out, clouds == len(answers))
	return f, nil
}

// CalibrateBeginnings fits how beginnings of these answers are judged, for a
// hold-back window of so many tokens. cascade.ErrFit where too few answers are
// known token by token, or go on for long enough.
func CalibrateBeginnings(answers []LabelledAnswer, window int) (cascade.Prefix, error) {
	samples := make([]cascade.TokenSample, len(answers))
	for i, a := range answers {
		samples[i] = cascade.TokenSample{LogProbs: a.LogProbs, Right: a.Edge}
	}
	return cascade.FitPrefix(samples, window)
}

func edgeLabels(answers []LabelledAnswer) []float64 {
	out := make([]float64, len(answers))
	for i, a := range answers {
		out[i] = a.Edge
	}
	return out
}

// outOfFold predicts each sample from the other four fifths; NaN where its
// signals are not usable.
func outOfFold(samples []cascade.Sample, features []cascade.Feature) ([]float64, error) {
	const folds = 5
	out := make([]float64, len(samples))
	for f := range folds {
		var train []cascade.Sample
		for i, s := range samples {
			if i%folds != f {
				train = append(train, s)
			}
		}
		c, err := cascade.FitPlatt(train, features...)
		if err != nil {
			return nil, err
		}
		for i := f; i < len(samples); i += folds {
			var ok bool
			if out[i], ok = c.Probability(&samples[i].Signals); !ok {
				out[i] = math.NaN()
			}
		}
	}
	return out, nil
}

func (f *Fit) count(answers []LabelledAnswer, p []float64, clouds bool) {
	edge, cloud, auto := 0.0, 0.0, 0.0
	for i, a := range answers {
		edge += a.Edge
		cloud += a.Cloud
		if math.IsNaN(p[i]) || p[i] < f.Calibration.Threshold {
			f.Escalated++
			auto += a.Cloud
		} else {
			auto += a.Edge
		}
	}
	f.Escalated /= float64(len(answers))
	if clouds && cloud > edge {
		f.Recovered = (auto - edge) / (cloud - edge)
	}
}

// CalibrateCommand is `weir cascade calibrate`: a calibration from labelled
// answers.
func CalibrateCommand() cli.Command {
	return cli.Command{Name: "calibrate", Short: "fit a calibration from labelled answers of an edge model",
		Usage: calibrateUsage, Run: runCalibrate}
}

const calibrateUsage = "--data FILE --model NAME --fingerprint SHA256 [--rate R | --threshold T] [--window N] [--verify-samples K [--verify-sampled]] [--out FILE]"

func runCalibrate(_ context.Context, env cli.Env, args []string) error {
	var data, model, fingerprint, out, kind string
	names := []string{string(cascade.FeatureProduct)}
	rate, threshold := .31, math.NaN()
	fs := pflag.NewFlagSet("cascade calibrate", pflag.ContinueOnError)
	fs.StringVar(&data, "data", "", "labelled answers: CSV or JSON lines, gzipped or not")
	fs.StringVar(&model, "model", "", "name of the edge model")
	fs.StringVar(&fingerprint, "fingerprint", "", "fingerprint of the edge model: SHA-256 of its file")
	fs.StringVar(&kind, "label-kind", "truth", "what the labels are: truth, feedback, validator, judge, agreement")
	fs.StringSliceVar(&names, "feature", names, "signals to use: product, min, mean, first, q10, tokens, margin, low")
	fs.Float64Var(&rate, "rate", rate, "share to escalate, which sets the threshold")
	fs.Float64Var(&threshold, "threshold", threshold, "probability below which to escalate, instead of --rate")
	window := fs.Int("window", 32, "tokens of a stream that are held back; with log-probabilities token by token only")
	samples := fs.Int("verify-samples", 0, "of how many samples the column votes counts the edge model's yes on its answer; 0 fits no verifier")
	sampled := fs.Bool("verify-sampled", false, "the column votes counts samples that were drawn, not the rounded probability of YES")
	fs.StringVar(&out, "out", "", "file to write; standard output without it")
	if err := cli.ParseFlags(env, fs, calibrateUsage, args); err != nil {
		return err
	}
	features, err := calibrateOptions(fs, data, model, fingerprint, kind, rate, threshold, *window, *samples, names)
	if err != nil {
		return err
	}
	file, err := os.Open(data)
	if err != nil {
		return err
	}
	defer file.Close()
	answers, err := ReadAnswers(file)
	if err != nil {
		return fmt.Errorf("%s: %w", data, err)
	}
	fit, err := Calibrate(answers, rate, features...)
	if err != nil {
		return err
	}
	c := &fit.Calibration
	c.Model, c.Fingerprint, c.LabelKind = model, fingerprint, kind
	if !math.IsNaN(threshold) {
		c.Threshold = threshold
	}
	switch prefix, err := CalibrateBeginnings(answers, *window); {
	case err == nil:
		c.Prefix = &prefix
	case errors.Is(err, cascade.ErrFit):
		fmt.Fprintf(env.Stderr, "streams will be held until they are whole: %v\n", err)
	default:
		return err
	}
	if *samples > 0 {
		if c.Verifier, err = CalibrateVerifier(answers, verifier.Votes{Of: *samples, Sampled: *sampled}); err != nil {
			return err
		}
		auroc, lower := c.Verifier.Benefit()
		fmt.Fprintf(env.Stderr, "votes of %.0f answers: %s; AUROC of \"escalation helps\" %s, at least %s\n", c.Verifier.Labels(), learn.GradeOf(lower), show(auroc), show(lower))
	}
	write := func(w io.Writer) error {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(c)
	}
	fmt.Fprintf(env.Stderr, "%d answers, %.1f %% right; on answers not fitted: AUROC %.3f, ECE %.3f; at --rate: %.1f %% escalated, gap recovered %s\n",
		c.Samples, 100*c.EdgeAccuracy, fit.AUROC, fit.ECE, 100*fit.Escalated, show(fit.Recovered))
	if out == "" {
		return write(env.Stdout)
	}
	return writeFile(out, write)
}

var sha256Hex = regexp.MustCompile(`^[0-9a-f]{64}$`)

func calibrateOptions(fs *pflag.FlagSet, data, model, fingerprint, kind string, rate, threshold float64, window, samples int, names []string) ([]cascade.Feature, error) {
	switch {
	case data == "" || model == "" || fingerprint == "":
		return nil, cli.Usagef("--data, --model and --fingerprint must be given")
	case !sha256Hex.MatchString(fingerprint):
		return nil, cli.Usagef("--fingerprint %q: want the SHA-256 of the model's file, 64 hexadecimal digits in small letters", fingerprint)
	case fs.NArg() > 0:
		return nil, cli.Usagef("unexpected argument %q", fs.Arg(0))
	case window < 1 || window > 4096:
		return nil, cli.Usagef("--window is %d, want 1 to 4096", window)
	case samples < 0 || samples > verifier.MostVotes:
		return nil, cli.Usagef("--verify-samples is %d, want 1 to %d, or 0 for no verifier", samples, verifier.MostVotes)
	case !(rate > 0 && rate < 1):
		return nil, cli.Usagef("--rate is %v, want between 0 and 1", rate)
	case fs.Changed("threshold") && fs.Changed("rate"):
		return nil, cli.Usagef("--rate and --threshold both set the threshold: give one")
	case fs.Changed("threshold") && !(threshold >= 0 && threshold <= 1):
		return nil, cli.Usagef("--threshold is %v, want 0 to 1", threshold)
	case !slices.Contains([]string{"truth", "feedback", "validator", "judge", "agreement"}, kind):
		return nil, cli.Usagef("--label-kind %q: use truth, feedback, validator, judge or agreement", kind)
	}
	var features []cascade.Feature
	for _, n := range names {
		f, err := cascade.ParseFeature(n)
		if err != nil {
			return nil, cli.Usagef("--feature: %v", err)
		}
		features = append(features, f)
	}
	return features, nil
}
