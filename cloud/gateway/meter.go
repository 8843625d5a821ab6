package gateway

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cloud/cascading"
	"github.com/weirhq/weir/cloud/pool"
	"github.com/weirhq/weir/internal/telemetry"
	"github.com/weirhq/weir/tenants"
)

// meter holds the gateway's own metrics; those of the GenAI conventions are
// telemetry's.
type meter struct {
	attempts  *prometheus.CounterVec
	fallbacks *prometheus.CounterVec
	cascaded  *prometheus.CounterVec
	verified  *prometheus.CounterVec
	choices   *prometheus.CounterVec
	scores    *prometheus.CounterVec
}

func newMeter(t *telemetry.Telemetry, g *Gateway, p *pool.Pool) (*meter, error) {
	m := &meter{
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_gateway_attempts_total",
			Help: "Attempts at instances by outcome."}, []string{"outcome"}),
		fallbacks: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_gateway_pd_fallback_total",
			Help: "Requests that were to be split and whose decode instance had to prefill, as far as the gateway knows."}, []string{"reason"}),
	}
	m.cascaded = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_gateway_cascade_decisions_total",
		Help: "Answers of small pools by model, by what was done (keep or escalate) and why."}, []string{"model", "action", "reason"})
	m.verified = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_gateway_verify_total",
		Help: "Answers of small pools of cascades that verify by model, and by what the pool's votes did to the verdict (same, escalates, keeps), or why there were none."}, []string{"model", "outcome"})
	m.choices = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_gateway_choices_total",
		Help: "Requests of models with equal pools by model, by the pool chosen and how: drawn, best, session, only or none."}, []string{"model", "pool", "how"})
	m.scores = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_gateway_feedback_total",
		Help: "Scores of answers that came, by outcome: kept, unknown, late, refused or failed."}, []string{"outcome"})
	for _, o := range []tenants.Outcome{tenants.OutcomeOK, tenants.OutcomeUpstreamError} {
		m.attempts.WithLabelValues(string(o))
	}
	for _, reason := range []string{"no_params", "no_prefill"} {
		m.fallbacks.WithLabelValues(reason)
	}
	inFlight := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "weir_gateway_in_flight", Help: "Requests under way."},
		func() float64 { return float64(g.inFlight.Load()) })
	for _, c := range []prometheus.Collector{m.attempts, m.fallbacks, m.cascaded, m.verified, m.choices, m.scores, inFlight, instances{p}, arms{g.opts.Models}} {
		if err := t.Registry.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}

func (m *meter) attempt(o tenants.Outcome) { m.attempts.WithLabelValues(string(o)).Inc() }
func (m *meter) fallback(reason string)    { m.fallbacks.WithLabelValues(reason).Inc() }

func (m *meter) scored(outcome string) { m.scores.WithLabelValues(outcome).Inc() }

// chosen counts a choice among equal pools.
func (m *meter) chosen(model, pool string, how cascading.How) {
	m.choices.WithLabelValues(model, pool, string(how)).Inc()
}

// judged counts a verdict on an answer of a cascade's small pool.
func (m *meter) judged(model string, v cascade.Verdict) {
	action := "keep"
	if v.Escalate {
		action = "escalate"
	}
	m.cascaded.WithLabelValues(model, action, string(v.Reason)).Inc()
}

// instances reports the pool's state at each scrape.
type instances struct{ pool *pool.Pool }

var (
	readyDesc = prometheus.NewDesc("weir_instance_ready", "1 while the instance takes work.", []string{"instance", "role", "model"}, nil)
	legsDesc  = prometheus.NewDesc("weir_instance_in_flight", "This gateway's legs under way at the instance.", []string{"instance", "role", "model"}, nil)
)

// Describe implements prometheus.Collector.
func (instances) Describe(ch chan<- *prometheus.Desc) { ch <- readyDesc; ch <- legsDesc }

// Collect implements prometheus.Collector.
func (c instances) Collect(ch chan<- prometheus.Metric) {
	for _, s := range c.pool.Status() {
		if s.Leaving {
			continue // its successor may bear the name
		}
		ready := 0.0
		if s.Ready {
			ready = 1
		}
		labels := []string{s.Name, string(s.Role), s.Model}
		ch <- prometheus.MustNewConstMetric(readyDesc, prometheus.GaugeValue, ready, labels...)
		ch <- prometheus.MustNewConstMetric(legsDesc, prometheus.GaugeValue, float64(s.InFlight.Requests), labels...)
	}
}

// arms reports what the equal pools of models have earned, for the classes that
// have labels.
type arms struct{ models map[string]Model }

var (
	armMeanDesc   = prometheus.NewDesc("weir_gateway_arm_quality", "Expected quality of a pool's answers by what they have earned.", []string{"model", "class", "pool"}, nil)
	armLabelsDesc = prometheus.NewDesc("weir_gateway_arm_labels", "Weight of the labels behind it, old ones fading.", []string{"model", "class", "pool"}, nil)
)

// Describe implements prometheus.Collector.
func (arms) Describe(ch chan<- *prometheus.Desc) { ch <- armMeanDesc; ch <- armLabelsDesc }

// Collect implements prometheus.Collector.
func (c arms) Collect(ch chan<- prometheus.Metric) {
	for name, m := range c.models {
		if m.Cascade == nil {
			continue
		}
		for cell, arm := range m.Cascade.Arms() {
			labels := []string{name, cell.Class, cell.Pool}
			ch <- prometheus.MustNewConstMetric(armMeanDesc, prometheus.GaugeValue, arm.Mean(), labels...)
			ch <- prometheus.MustNewConstMetric(armLabelsDesc, prometheus.GaugeValue, arm.Right+arm.Wrong, labels...)
		}
	}
}
