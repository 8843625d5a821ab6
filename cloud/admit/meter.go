package admit

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir/tenants/quota"
)

// meter holds admission's metrics. Tenants are no labels: their number has no
// bound.
type meter struct {
	results *prometheus.CounterVec
	shadow  prometheus.Counter
}

func newMeter(a *Admitter, reg prometheus.Registerer) (*meter, error) {
	m := &meter{results: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_admission_total",
		Help: "Requests by what admission said."}, []string{"result"}),
		shadow: prometheus.NewCounter(prometheus.CounterOpts{Name: "weir_admission_shadow_refusals_total",
			Help: "Refusals that limits in shadow have not made."})}
	m.results.WithLabelValues(quota.Admitted.String())
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.results, m.shadow, queues{a}} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}

// queues reports lines and accounts at each scrape.
type queues struct{ a *Admitter }

var (
	runningDesc = prometheus.NewDesc("weir_admission_running", "Requests let in and not yet settled.", []string{"model"}, nil)
	waitingDesc = prometheus.NewDesc("weir_admission_waiting", "Requests in the fair queue.", []string{"model"}, nil)
	openDesc    = prometheus.NewDesc("weir_admission_open_reservations", "Reservations that have not ended.", nil, nil)
	peersDesc   = prometheus.NewDesc("weir_admission_gateways", "Gateways that share rates, this one included; 0 without a store.", nil, nil)
)

// Describe implements prometheus.Collector.
func (queues) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{runningDesc, waitingDesc, openDesc, peersDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (q queues) Collect(ch chan<- prometheus.Metric) {
	q.a.mu.Lock()
	lines := make(map[string]*line, len(q.a.lines))
	for model, l := range q.a.lines {
		lines[model] = l
	}
	q.a.mu.Unlock()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for model, l := range lines {
		running, waiting := l.lengths()
		gauge(runningDesc, float64(running), model)
		gauge(waitingDesc, float64(waiting), model)
	}
	open := 0
	q.a.book.All(func(_ string, a *quota.Account) { open += a.Open() })
	gauge(openDesc, float64(open))
	gauge(peersDesc, float64(q.a.agent.peers.Load()))
}
