package learn

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/weirhq/weir/cascade"
)

func plainTable() *Table {
	tb := NewTable(DefaultOptions(), "fp", cascade.FeatureProduct)
	tb.Ship(&cascade.Calibration{Version: 1, Fingerprint: "fp", Bias: .5, Samples: 4000, Threshold: .7, Terms: []cascade.Term{{Feature: cascade.FeatureProduct, Weight: 1}},
		Prefix: &cascade.Prefix{Tokens: 32, Terms: []cascade.Term{{Feature: cascade.FeatureProduct, Weight: 1}}}})
	return tb
}

func labelled(tb *Table, n int, answer bool) {
	for i := range n {
		tb.Observe(Outcome{Cell: "c", X: []float64{float64(i % 4)}, Edge: float64(i % 2), Cloud: 1, CloudKnown: true, Propensity: 1, Answer: answer})
	}
}

// signals of answers without and with reasoning.
func signals(think int) *cascade.Signals {
	s := &cascade.Signals{Usable: true, Tokens: 3, SumLogProb: -.1}
	s.Spans[cascade.SpanAnswer], s.Spans[cascade.SpanThink] = 3, think
	return s
}

// Labels that were taken over reasoning and JSON too make no calibration of answer
// spans, also after a restart; those of answer spans do. What was shipped of
// beginnings stays one of plain text.
func TestLabelsOfAllTokensAreNone(t *testing.T) {
	tb := plainTable()
	judges := func(when string, want bool) {
		t.Helper()
		v := tb.View("c")
		if _, ok := v.Calibration.Probability(signals(0)); !ok {
			t.Errorf("%s: plain text is not judged", when)
		}
		if _, ok := v.Calibration.Probability(signals(5)); ok != want {
			t.Errorf("%s: with reasoning it is judged: %v", when, ok)
		}
		if _, ok := v.Calibration.PrefixProbability(signals(5)); ok {
			t.Errorf("%s: a beginning with reasoning is judged by what was fitted on plain text", when)
		}
		if _, ok := v.Calibration.PrefixProbability(signals(0)); !ok {
			t.Errorf("%s: a beginning of plain text is not judged", when)
		}
	}
	again := func() {
		t.Helper()
		old := tb.shipped
		tb = restarted(t, tb)
		tb.Ship(old)
	}
	labelled(tb, 600, false)
	judges("600 old labels", false)
	again()
	judges("600 old labels after a restart", false)
	labelled(tb, 150, true)
	again()
	judges("150 new labels", false)
	labelled(tb, 150, true)
	judges("300 new labels", true)
	again()
	judges("300 new labels after a restart", true)
	if tb.shipped.Scored != "" || tb.shipped.Prefix.Plain {
		t.Error("the shipped calibration has changed")
	}
}

// A snapshot of an older release, which does not tell what was scored, is read,
// and its labels are of all tokens.
func TestOlderSnapshotIsOfAllTokens(t *testing.T) {
	tb := plainTable()
	labelled(tb, 600, true)
	var buf bytes.Buffer
	if err := tb.Snapshot(&buf); err != nil {
		t.Fatal(err)
	}
	var s map[string]any
	if err := json.Unmarshal(buf.Bytes(), &s); err != nil {
		t.Fatal(err)
	}
	cell := s["cells"].([]any)[0].(map[string]any)
	if marks, _ := cell["scored"].(string); len(marks) != 600 {
		t.Fatalf("%d labels are marked", len(marks))
	}
	delete(cell, "scored")
	raw, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	back, err := Restore(bytes.NewReader(raw), DefaultOptions())
	if err != nil {
		t.Fatal(err)
	}
	back.Ship(tb.shipped)
	if v := back.View("c"); v.Calibration.Scored != "" || v.Effective < 300 {
		t.Errorf("scored %q, %v labels", v.Calibration.Scored, v.Effective)
	}
}

// A model without a calibration is judged by its own labels, of old ones only
// where the answer is plain text.
func TestOldLabelsWithoutACalibration(t *testing.T) {
	tb := NewTable(DefaultOptions(), "fp", cascade.FeatureProduct)
	labelled(tb, 400, false)
	v := tb.View("c")
	if _, ok := v.Calibration.Probability(signals(1)); ok || !v.Calibrated || v.Calibration.Scored != "" {
		t.Errorf("old labels: %+v", v)
	}
	labelled(tb, 400, true)
	if v := tb.View("c"); v.Calibration.Scored != cascade.ScoredAnswer {
		t.Errorf("new labels: %+v", v)
	}
}
