package policies

import "github.com/prometheus/client_golang/prometheus"

var (
	labels     = []string{"tenant", "class"}
	descTheta  = prometheus.NewDesc("weir_edge_policy_theta", "Gain above which a request is let over, as the controller has it now.", labels, nil)
	descLambda = prometheus.NewDesc("weir_edge_policy_lambda", "Shadow price of the budget.", labels, nil)
	descSpent  = prometheus.NewDesc("weir_edge_policy_spent_nanousd", "Spent today (UTC) under the budget.", labels, nil)
	descRefuse = prometheus.NewDesc("weir_edge_policy_refused", "1 while the newest settings are refused and older ones are in force.", labels, nil)
	descJudged = prometheus.NewDesc("weir_edge_policy_judged_total", "Answers judged.", labels, nil)
	descWanted = prometheus.NewDesc("weir_edge_policy_wanted_total", "Answers that the policy would let over.", labels, nil)
)

// Describe implements prometheus.Collector.
func (s *Set) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descTheta, descLambda, descSpent, descRefuse, descJudged, descWanted} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (s *Set) Collect(out chan<- prometheus.Metric) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for at, st := range s.rows {
		send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64) {
			out <- prometheus.MustNewConstMetric(d, kind, v, at.tenant, at.class)
		}
		o := st.class.owner
		o.mu.Lock()
		n, judged, wanted := o.ctl.State(), o.judged, o.wanted
		o.mu.Unlock()
		refused := 0.0
		if st.refusal != nil {
			refused = 1
		}
		send(descTheta, prometheus.GaugeValue, n.Theta)
		send(descLambda, prometheus.GaugeValue, n.Lambda)
		send(descSpent, prometheus.GaugeValue, float64(n.SpentNano))
		send(descRefuse, prometheus.GaugeValue, refused)
		send(descJudged, prometheus.CounterValue, float64(judged))
		send(descWanted, prometheus.CounterValue, float64(wanted))
	}
}
