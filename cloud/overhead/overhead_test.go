package overhead

import (
	"testing"
	"time"

	"github.com/weirhq/weir/internal/testproc"
)

func TestMain(m *testing.M) { testproc.VerifyMain(m) }

// TestMeasure runs the measurement small: it must go both ways and end clean.
// Its figures belong to the benchmark.
func TestMeasure(t *testing.T) {
	r, err := newRig(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, stream := range []bool{false, true} {
		if _, err := r.measure(t.Context(), stream, 10); err != nil {
			t.Errorf("stream %v: %v", stream, err)
		}
	}
	r.Key = "wk_wrong"
	if _, err := r.measure(t.Context(), false, 10); err == nil {
		t.Error("a measurement of refusals passed")
	}
}

func TestPercentile(t *testing.T) {
	d := []time.Duration{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	if at(d, 0.5) != 6 || at(d, 0.99) != 10 || at(d[:1], 0.99) != 1 {
		t.Errorf("percentiles %v %v %v", at(d, 0.5), at(d, 0.99), at(d[:1], 0.99))
	}
}

func BenchmarkThroughGateway(b *testing.B) {
	r, err := newRig(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	for name, url := range map[string]string{"direct": r.Engine, "gateway": r.gateway} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := r.Ask(b.Context(), url, false); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkAdded reports the suite's figures.
func BenchmarkAdded(b *testing.B) {
	r, err := newRig(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	for name, stream := range map[string]bool{"whole": false, "first_event": true} {
		b.Run(name, func(b *testing.B) {
			added, err := r.measure(b.Context(), stream, b.N)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(ms(added.P50), "p50-ms")
			b.ReportMetric(ms(added.P99), "p99-ms")
		})
	}
}
