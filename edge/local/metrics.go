package local

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir/edge/uplink"
)

// metrics are the edge's own, beside the GenAI conventions'.
type metrics struct {
	requests   *prometheus.CounterVec
	refused    *prometheus.CounterVec
	confidence prometheus.Histogram
	decisions  *prometheus.CounterVec
	dropped    prometheus.Counter
	handovers  *prometheus.CounterVec
	shadowed   prometheus.Counter
	verified   *prometheus.CounterVec
	feedback   *prometheus.CounterVec
	recent     share
}

func newMetrics(reg prometheus.Registerer, cloud Cloud, rules prometheus.Collector) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_edge_requests_total", Help: "Requests by the tier that answered, the reason and how they ended.",
		}, []string{"tier", "reason", "outcome"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_edge_refused_total", Help: "Requests refused before they could reach a model, by error code.",
		}, []string{"code"}),
		confidence: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "weir_edge_confidence", Help: "Calibrated probability that the edge's answer is right.",
			Buckets: []float64{.1, .2, .3, .4, .5, .6, .7, .8, .9, .95, .99},
		}),
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_edge_decisions_total", Help: "Judged answers by class, by what was done (keep or escalate), and the verdict's reason.",
		}, []string{"class", "action", "reason"}),
		handovers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_edge_handovers_total", Help: "Local answers that the cloud took over, by kind (restart, continue, append) and whether text was shown before.",
		}, []string{"kind", "shown"}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "weir_edge_decisions_dropped_total", Help: "Decisions that the log had no room for.",
		}),
		verified: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_edge_verify_total", Help: "Judged answers of classes that verify, by what the local model's votes did to the verdict (same, escalates, keeps), or why there were none.",
		}, []string{"outcome"}),
		shadowed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "weir_edge_shadow_refusals_total", Help: "Refusals of local answers that limits in shadow have not made.",
		}),
	}
	m.feedback = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_edge_feedback_total", Help: "Scores of answers by what became of them: taken, and of the cloud's answers forwarded, refused or lost.",
	}, []string{"outcome"})
	recent := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "weir_edge_escalated_share", Help: "Share of the last 1,000 judged answers that were let over to the cloud.",
	}, m.recent.value)
	stat := func(name, help string, read func(uplink.Stats) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return read(cloud.Stats()) })
	}
	all := []prometheus.Collector{
		m.requests, m.refused, m.confidence, m.decisions, m.dropped, m.handovers, m.shadowed, m.verified, m.feedback, recent, rules,
		stat("weir_edge_uplink_up", "1 while the cloud can be reached.", func(s uplink.Stats) float64 { return one(s.State == uplink.Up) }),
		stat("weir_edge_uplink_quic", "1 while the link runs over QUIC.", func(s uplink.Stats) float64 { return one(s.Via == uplink.ViaQUIC) }),
		stat("weir_edge_uplink_rtt_seconds", "Smoothed round trip to the cloud.", func(s uplink.Stats) float64 { return s.RTT.Seconds() }),
		stat("weir_edge_uplink_quic_requests", "Requests sent over QUIC.", func(s uplink.Stats) float64 { return float64(s.QUICRequests) }),
		stat("weir_edge_uplink_h2_requests", "Requests sent over HTTP/2.", func(s uplink.Stats) float64 { return float64(s.H2Requests) }),
		stat("weir_edge_uplink_quic_bytes_sent", "Bytes sent over QUIC.", func(s uplink.Stats) float64 { return float64(s.QUIC.BytesSent) }),
		stat("weir_edge_uplink_quic_bytes_received", "Bytes received over QUIC.", func(s uplink.Stats) float64 { return float64(s.QUIC.BytesReceived) }),
		stat("weir_edge_uplink_quic_packets_lost", "Packets lost over QUIC.", func(s uplink.Stats) float64 { return float64(s.QUIC.PacketsLost) }),
	}
	for _, c := range all {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("edge metrics: %w", err)
		}
	}
	return m, nil
}

func (m *metrics) judged(c *call) {
	action := "keep"
	if c.verdict.Escalate {
		action = "escalate"
	}
	m.decisions.WithLabelValues(cell(c.class), action, string(c.verdict.Reason)).Inc()
	m.recent.add(c.verdict.Escalate)
}

func one(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
