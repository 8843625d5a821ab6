package worker

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// expertsCollector reads a runner's experts when it is scraped.
type expertsCollector struct{ runner balanced }

var (
	descImbalance = prometheus.NewDesc("weir:expert_imbalance", "Highest over mean load of shards in the latest window, by layer.", []string{"layer"}, nil)
	descBytes     = prometheus.NewDesc("weir:expert_shard_bytes", "Weights that a shard holds.", []string{"shard"}, nil)
	descTokens    = prometheus.NewDesc("weir:expert_shard_tokens_total", "Tokens that a shard's experts have computed, over all layers.", []string{"shard"}, nil)
	descLost      = prometheus.NewDesc("weir:expert_shard_lost", "1 where a shard is out of service.", []string{"shard"}, nil)
	descPlacement = prometheus.NewDesc("weir:expert_placement_generation", "Generation of the placement in force.", nil, nil)
	descWindows   = prometheus.NewDesc("weir:expert_windows_total", "Windows that the loop has judged.", nil, nil)
	descMoves     = prometheus.NewDesc("weir:expert_moves_total", "Placements put in force, roll-backs included.", nil, nil)
	descFailures  = prometheus.NewDesc("weir:expert_move_failures_total", "Moves that failed; the old placement stayed.", nil, nil)
	descCopied    = prometheus.NewDesc("weir:expert_copied_bytes_total", "Bytes of weights that moves have carried.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c expertsCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descImbalance, descBytes, descTokens, descLost, descPlacement, descWindows, descMoves, descFailures, descCopied} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c expertsCollector) Collect(ch chan<- prometheus.Metric) {
	s := c.runner.Experts()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	for l, x := range s.Imbalance {
		gauge(descImbalance, x, strconv.Itoa(l))
	}
	for i, shard := range s.Shards {
		name := strconv.Itoa(i)
		gauge(descBytes, float64(shard.Bytes), name)
		count(descTokens, float64(shard.Sent), name)
		lost := 0.0
		if shard.Lost {
			lost = 1
		}
		gauge(descLost, lost, name)
	}
	gauge(descPlacement, float64(s.Generation))
	count(descWindows, float64(s.Windows))
	count(descMoves, float64(s.Moves))
	count(descFailures, float64(s.Failures))
	count(descCopied, float64(s.Copied))
}
