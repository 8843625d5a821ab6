package learning

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir/cascade/learn"
)

// counts are totals since the start.
type counts struct {
	escalated, shadowed, lost, skipped  atomic.Uint64 // labels
	labelled, failed, dropped, excluded atomic.Uint64 // shadow calls
}

func (c *counts) label(shadow bool) {
	if shadow {
		c.shadowed.Add(1)
	} else {
		c.escalated.Add(1)
	}
}

func (c *counts) shadow(outcome string) {
	switch outcome {
	case "labelled":
		c.labelled.Add(1)
	case "failed":
		c.failed.Add(1)
	case "dropped":
		c.dropped.Add(1)
	default:
		c.excluded.Add(1)
	}
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("weir_edge_"+name, help, labels, nil)
}

var (
	descError     = desc("calibration_error", "Expected calibration error of confidences given before their label was seen.", "class")
	descEffective = desc("calibration_labels", "Effective labels of the class's calibration.", "class")
	descShare     = desc("shadow_share", "Share of kept answers that is labelled in the shadow.", "class")
	descAlarms    = desc("drift_alarms_total", "Drift alarms.", "class")
	descAlarmed   = desc("drift_alarmed", "1 while a drift alarm is looked into.", "class")
	descQuality   = desc("cloud_quality", "Learned probability that the cloud is right.", "class")
	descHelps     = desc("escalation_helps", "Share of answers on which escalation would help.", "class")
	descGrade     = desc("signal_grade", "1 for the grade of the class's signal: usable, weak, unusable or unknown.", "class", "grade")
	descVerifier  = desc("verifier_grade", "1 for the grade of the local model's votes on its own answers: usable, weak, unusable or unknown.", "class", "grade")
	descVoted     = desc("verifier_labels", "Effective labels with votes.", "class")
	descLabels    = desc("labels_total", "Labels learned from, by where they came from; lost: the log had no room, skipped: kept answers had no chance of one.", "source")
	descShadows   = desc("shadow_calls_total", "Kept answers by what became of their shadow label; excluded: the limits or the share forbade it.", "outcome")
	descSpent     = desc("shadow_spent_nanousd", "Spent today (UTC) on shadow labels.")
)

// Describe implements prometheus.Collector.
func (l *Learner) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descError, descEffective, descShare, descAlarms, descAlarmed, descQuality, descHelps, descGrade, descVerifier, descVoted, descLabels, descShadows, descSpent} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (l *Learner) Collect(out chan<- prometheus.Metric) {
	for cell, v := range l.views.Load().cells {
		collectCell(out, cell, v)
	}
	count := func(d *prometheus.Desc, n uint64, label string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), label)
	}
	count(descLabels, l.counts.escalated.Load(), "escalated")
	count(descLabels, l.counts.shadowed.Load(), "shadow")
	count(descLabels, l.counts.lost.Load(), "lost")
	count(descLabels, l.counts.skipped.Load(), "skipped")
	count(descShadows, l.counts.labelled.Load(), "labelled")
	count(descShadows, l.counts.failed.Load(), "failed")
	count(descShadows, l.counts.dropped.Load(), "dropped")
	count(descShadows, l.counts.excluded.Load(), "excluded")
	_, spent := l.shadows.today()
	out <- prometheus.MustNewConstMetric(descSpent, prometheus.GaugeValue, float64(spent))
}

func collectCell(out chan<- prometheus.Metric, cell string, v *learn.View) {
	gauge := func(d *prometheus.Desc, value float64, more ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, append([]string{cell}, more...)...)
	}
	alarmed := 0.0
	if v.Alarmed {
		alarmed = 1
	}
	gauge(descError, v.Error)
	gauge(descEffective, v.Effective)
	gauge(descShare, v.Shadow)
	gauge(descAlarmed, alarmed)
	gauge(descQuality, v.CloudQuality)
	gauge(descHelps, v.Helps)
	gauge(descGrade, 1, string(v.Grade))
	if v.Verifier != nil {
		gauge(descVerifier, 1, string(v.VerifierGrade))
		gauge(descVoted, v.Verifier.Labels())
	}
	out <- prometheus.MustNewConstMetric(descAlarms, prometheus.CounterValue, float64(v.Alarms), cell)
}
