package pool

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Results of moves.
const (
	resultMoved  = "moved"
	resultStayed = "stayed" // its instance did not take the order or carry it out, or the stream ended before
)

// meters are the pool's own metrics.
type meters struct {
	moves    *prometheus.CounterVec
	downtime *prometheus.HistogramVec
}

func newMeters() meters {
	m := meters{
		moves: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_moves_total",
			Help: "Streams that were to move to another instance, by why and what became of it."}, []string{"cause", "result"}),
		downtime: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "weir_move_downtime_seconds",
			Help:    "From a stream's last token before a move to its next one after it, as this gateway saw them, by cause.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}}, []string{"cause"}),
	}
	for _, c := range []Cause{CauseDrain, CauseFailing, CauseBalance} {
		for _, r := range []string{resultMoved, resultStayed} {
			m.moves.WithLabelValues(string(c), r)
		}
		m.downtime.WithLabelValues(string(c))
	}
	return m
}

// register makes the metrics known, where there is a registry.
func (m *meters) register(reg prometheus.Registerer) error {
	if reg == nil {
		return nil
	}
	for _, c := range []prometheus.Collector{m.moves, m.downtime} {
		if err := reg.Register(c); err != nil {
			return fmt.Errorf("register metrics of the pool: %w", err)
		}
	}
	return nil
}
