package rows

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir/tenants/spool"
)

// Stats tell what waits and what was written since the start.
type Stats struct {
	Spool      spool.Stats
	Inserted   uint64
	Duplicates uint64        // were in the ledger already
	Lost       uint64        // refused by the ledger for good
	Batches    uint64        // written
	Failures   uint64        // of writes
	Lag        time.Duration // at least the age of the oldest row that waits, since the start; 0: none does
}

// Stats returns the counts of now.
func (r *Recorder) Stats() Stats {
	s := Stats{Spool: r.spool.Stats(), Inserted: r.inserted.Load(), Duplicates: r.duplicates.Load(), Lost: r.bad.Load(),
		Batches: r.batches.Load(), Failures: r.failures.Load()}
	if s.Spool.Pending > 0 {
		s.Lag = time.Since(time.Unix(0, r.behind.Load()))
	}
	return s
}

// Failing reports whether rows wait because the last write of some failed.
func (r *Recorder) Failing() bool { return r.failing.Load() }

var (
	rowsDesc     = desc("rows_total", "Usage rows by what became of them: inserted, duplicate, or lost because the ledger can never hold them.", "result")
	batchesDesc  = desc("batches_total", "Writes of rows to the ledger.", "result")
	waitingDesc  = desc("waiting_rows", "Rows on disk that the ledger does not hold yet.")
	openDesc     = desc("open_admissions", "Attempts on disk that have not been settled.")
	lagDesc      = desc("lag_seconds", "For how long rows have waited at most; 0 when none does.")
	segmentsDesc = desc("segments", "Files that hold rows.")
	bytesDesc    = desc("segment_bytes", "Size of the files that hold rows.")
	refusedDesc  = desc("refused_admissions_total", "Requests refused because the files had reached their cap.")
	recoverDesc  = desc("recovered_admissions_total", "Attempts of dead processes that became gateway_lost rows.")
	tornDesc     = desc("torn_frames_total", "Records that a crash of the machine has destroyed.")
	keptDesc     = desc("kept_files_total", "Files set aside because parts could not be read.")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("weir_ledger_"+name, help, labels, nil)
}

// Describe implements prometheus.Collector.
func (r *Recorder) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{rowsDesc, batchesDesc, waitingDesc, openDesc, lagDesc, segmentsDesc, bytesDesc, refusedDesc, recoverDesc, tornDesc, keptDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (r *Recorder) Collect(ch chan<- prometheus.Metric) {
	s := r.Stats()
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge := func(d *prometheus.Desc, v float64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v)
	}
	count(rowsDesc, s.Inserted, "inserted")
	count(rowsDesc, s.Duplicates, "duplicate")
	count(rowsDesc, s.Lost, "lost")
	count(batchesDesc, s.Batches, "written")
	count(batchesDesc, s.Failures, "failed")
	gauge(waitingDesc, float64(s.Spool.Pending))
	gauge(openDesc, float64(s.Spool.Open))
	gauge(lagDesc, s.Lag.Seconds())
	gauge(segmentsDesc, float64(s.Spool.Segments))
	gauge(bytesDesc, float64(s.Spool.Bytes))
	count(refusedDesc, uint64(s.Spool.Refused))
	count(recoverDesc, uint64(s.Spool.Recovered))
	count(tornDesc, uint64(s.Spool.Torn))
	count(keptDesc, uint64(s.Spool.Kept))
}
