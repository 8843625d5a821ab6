package cascade

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/weirhq/weir/cascade/verifier"
)

// ErrFingerprint says that a calibration was made for another model.
var ErrFingerprint = errors.New("calibration belongs to another model")

// calibrationVersion is the format written and read.
const calibrationVersion = 1

// Calibration turns Signals into the probability that the edge's answer is
// right: sigmoid(Bias + sum Weight*Feature), Platt's method over log-odds.
// It is valid for one model only, named by its fingerprint.
type Calibration struct {
	Version int `json:"version"`
	// Model is the served name of the edge model, for people.
	Model string `json:"model"`
	// Fingerprint names weights (and where they matter runner and KV format).
	// It is compared by Bind.
	Fingerprint string `json:"fingerprint"`
	// LabelKind says what "right" meant: truth, feedback, validator, judge or
	// agreement (with the cloud).
	LabelKind string `json:"label_kind"`
	// Scored is ScoredAnswer where it was fitted on answers whose other spans were
	// told apart, or "": on plain text, of which every token is the answer. Answers
	// with reasoning, JSON or tool calls are then not judged by it.
	Scored  string  `json:"scored,omitempty"`
	Samples int     `json:"samples"`
	Bias    float64 `json:"bias"`
	Terms   []Term  `json:"terms"`
	// EdgeAccuracy and CloudAccuracy are means over the samples; CloudAccuracy
	// is 0 when it was not measured.
	EdgeAccuracy  float64 `json:"edge_accuracy"`
	CloudAccuracy float64 `json:"cloud_accuracy,omitempty"`
	// Quantiles are the 0, 5, 10, ..., 100 % quantiles of the probability over
	// the samples, by which a wanted rate finds its first threshold; may be nil.
	Quantiles []float64 `json:"quantiles,omitempty"`
	// Threshold is the recommended probability below which to escalate.
	Threshold float64 `json:"threshold"`
	// Curve, when set, replaces the sigmoid's probability by a rising function
	// of it: isotonic regression, where it has earned that.
	Curve Curve `json:"curve,omitempty"`
	// Prefix judges unfinished answers; nil: none can be, and each is held back
	// until it is whole.
	Prefix *Prefix `json:"prefix,omitempty"`
	// Verifier reads the model's word on its own answers; nil: it is not asked. It
	// does not change.
	Verifier *verifier.Table `json:"verifier,omitempty"`
}

// ScoredAnswer is the value of Calibration.Scored for answer spans.
const ScoredAnswer = "answer"

// Term is one weighted feature of a calibration.
type Term struct {
	Feature Feature `json:"feature"`
	Weight  float64 `json:"weight"`
}

// Sample is one labelled answer of the edge model.
type Sample struct {
	Signals Signals
	Right   float64 // 1 right, 0 wrong, or a score between
	Weight  float64 // 0 counts as 1
}

// slopeFloor keeps the first feature's order: a more confident answer is never
// called less likely to be right.
const slopeFloor = .05

// FitPlatt fits a calibration on samples; without features it uses
// FeatureProduct. Samples that are not usable are skipped. The returned
// calibration has no fingerprint, name or threshold yet. ErrFit when fewer
// than ten samples remain or all have the same label.
func FitPlatt(samples []Sample, features ...Feature) (Calibration, error) {
	if len(features) == 0 {
		features = []Feature{FeatureProduct}
	}
	var x, y, w []float64
	right, total, scored := 0.0, 0.0, ""
	for i := range samples {
		s := &samples[i]
		row, ok := featureRow(&s.Signals, features)
		if !ok {
			continue
		}
		weight := s.Weight
		if weight <= 0 {
			weight = 1
		}
		if !s.Signals.Spans.Plain() {
			scored = ScoredAnswer
		}
		x = append(x, row...)
		y = append(y, s.Right)
		w = append(w, weight)
		right += weight * s.Right
		total += weight
	}
	if len(y) < 10 || right == 0 || right == total {
		return Calibration{}, fmt.Errorf("%w: %s", ErrFit, tooFew(samples, features, len(y), right/math.Max(total, 1)))
	}
	fit := FitLogistic(x, len(features), y, w, nil, 1e-3)
	fit.FloorSlope(slopeFloor, x, len(features), y, w)
	c := Calibration{
		Version: calibrationVersion, LabelKind: "truth", Scored: scored, Samples: len(y),
		Bias: fit.Bias, EdgeAccuracy: right / total, Threshold: .5,
	}
	for i, f := range features {
		c.Terms = append(c.Terms, Term{f, fit.W[i]})
	}
	c.Quantiles = c.quantiles(samples)
	return c, nil
}

// tooFew says why samples are not enough to fit from.
func tooFew(samples []Sample, features []Feature, usable int, right float64) string {
	if usable >= 10 {
		return fmt.Sprintf("%.0f %% of %d are right, and both right and wrong ones are needed", 100*right, usable)
	}
	unusable, lacks := 0, make([]int, len(features))
	for i := range samples {
		s := &samples[i].Signals
		if !s.Usable {
			unusable++
			continue
		}
		for k, f := range features {
			if v, ok := f.Value(s); !ok || math.IsNaN(v) {
				lacks[k]++
			}
		}
	}
	why := fmt.Sprintf("%d of %d can be used and 10 are needed", usable, len(samples))
	if unusable > 0 {
		why += fmt.Sprintf("; %d have no log-probabilities, or some that are missing or above 0", unusable)
	}
	for k, f := range features {
		if lacks[k] > 0 {
			why += fmt.Sprintf("; %d lack the signal %s", lacks[k], f)
		}
	}
	return why
}

// quantileSteps is the number of intervals between quantiles.
const quantileSteps = 20

func (c *Calibration) quantiles(samples []Sample) []float64 {
	var p []float64
	for i := range samples {
		if v, ok := c.Probability(&samples[i].Signals); ok {
			p = append(p, v)
		}
	}
	slices.Sort(p)
	q := make([]float64, quantileSteps+1)
	for i := range q {
		q[i] = math.Round(1e4*p[i*(len(p)-1)/quantileSteps]) / 1e4
	}
	return q
}

// ThresholdFor returns the probability below which the share rate of the
// calibration's answers lies; ok is false when the calibration has no quantiles.
func (c *Calibration) ThresholdFor(rate float64) (threshold float64, ok bool) {
	if len(c.Quantiles) != quantileSteps+1 || !unit(rate) {
		return 0, false
	}
	at := rate * quantileSteps
	i := min(int(at), quantileSteps-1)
	return c.Quantiles[i] + (at-float64(i))*(c.Quantiles[i+1]-c.Quantiles[i]), true
}

func featureRow(s *Signals, features []Feature) ([]float64, bool) {
	if !s.Usable {
		return nil, false
	}
	row := make([]float64, len(features))
	for i, f := range features {
		v, ok := f.Value(s)
		if !ok || math.IsNaN(v) {
			return nil, false
		}
		row[i] = v
	}
	return row, true
}

// Probability returns the probability that the answer with these signals is
// right. ok is false when the signals are not usable or lack a feature.
func (c *Calibration) Probability(s *Signals) (p float64, ok bool) {
	if c == nil || !c.scores(s) {
		return 0, false
	}
	p, ok = platt(c.Bias, c.Terms, s)
	return c.Curve.At(p), ok
}

// scores reports whether answers like this one were fitted on.
func (c *Calibration) scores(s *Signals) bool { return c.Scored == ScoredAnswer || s.Spans.Plain() }

// platt is sigmoid(bias + sum weight*feature); ok is false when the signals are
// not usable or lack a feature.
func platt(bias float64, terms []Term, s *Signals) (p float64, ok bool) {
	if len(terms) == 0 || !s.Usable {
		return 0, false
	}
	z := bias
	for _, t := range terms {
		v, ok := t.Feature.Value(s)
		if !ok {
			return 0, false
		}
		z += t.Weight * v
	}
	if math.IsNaN(z) {
		return 0, false
	}
	return Sigmoid(z), true
}

// Bind returns ErrFingerprint unless the calibration was made for the model
// with this fingerprint.
func (c *Calibration) Bind(fingerprint string) error {
	if c.Fingerprint != fingerprint {
		return fmt.Errorf("%w: made for %q, the model is %q: run 'weir cascade calibrate'", ErrFingerprint, c.Fingerprint, fingerprint)
	}
	return nil
}

// Validate reports the first field with an impossible value.
func (c *Calibration) Validate() error {
	switch {
	case c.Version != calibrationVersion:
		return fmt.Errorf("calibration: version is %d, want %d", c.Version, calibrationVersion)
	case c.Scored != "" && c.Scored != ScoredAnswer:
		return fmt.Errorf("calibration: scored is %q, want %q or nothing", c.Scored, ScoredAnswer)
	case len(c.Terms) == 0 || len(c.Terms) > 8:
		return fmt.Errorf("calibration: terms has %d entries, want 1 to 8", len(c.Terms))
	case !finite(c.Bias):
		return errors.New("calibration: bias is not a finite number")
	case !unit(c.Threshold):
		return fmt.Errorf("calibration: threshold is %v, want 0 to 1", c.Threshold)
	case !unit(c.EdgeAccuracy) || !unit(c.CloudAccuracy):
		return errors.New("calibration: an accuracy is not between 0 and 1")
	case c.Samples < 0:
		return fmt.Errorf("calibration: samples is %d, want 0 or more", c.Samples)
	}
	if c.Quantiles != nil && (len(c.Quantiles) != quantileSteps+1 || !slices.IsSorted(c.Quantiles) ||
		!unit(c.Quantiles[0]) || !unit(c.Quantiles[quantileSteps])) {
		return fmt.Errorf("calibration: quantiles must be %d rising probabilities", quantileSteps+1)
	}
	if !c.Curve.valid() {
		return errors.New("calibration: curve must be rising points from 0 to 1")
	}
	if err := validTerms(c.Terms); err != nil {
		return err
	}
	return c.Prefix.validate()
}

func validTerms(terms []Term) error {
	for _, t := range terms {
		if !t.Feature.Valid() {
			return fmt.Errorf("calibration: unknown feature %q", t.Feature)
		}
		if !finite(t.Weight) {
			return fmt.Errorf("calibration: weight of %q is not a finite number", t.Feature)
		}
	}
	return nil
}

// ParseCalibration reads a calibration from JSON. Unknown keys, trailing data
// and impossible values are errors.
func ParseCalibration(data []byte) (Calibration, error) {
	var c Calibration
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&c); err != nil {
		return Calibration{}, fmt.Errorf("calibration: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Calibration{}, errors.New("calibration: data after the JSON object")
	}
	if err := c.Validate(); err != nil {
		return Calibration{}, err
	}
	return c, nil
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }
func unit(v float64) bool   { return v >= 0 && v <= 1 }
