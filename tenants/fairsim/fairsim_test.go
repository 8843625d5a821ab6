package fairsim

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// data is the folder of recorded data beside the checkout.
func data(t *testing.T) string {
	t.Helper()
	dir := filepath.Join("..", "..", "..", "shared", "data")
	if _, err := os.Stat(filepath.Join(dir, "traces")); err != nil {
		t.Skipf("recorded traces are not beside this checkout: %v", err)
	}
	return dir
}

func TestServiceGapWithinBoundOnRealClients(t *testing.T) {
	for _, start := range []string{"0", "43200", "216000"} {
		clients, err := ServeGenMLarge(data(t), start)
		if err != nil {
			t.Fatal(err)
		}
		if len(clients) < 20 {
			t.Fatalf("%d clients at %s s", len(clients), start)
		}
		c, err := Compare(clients)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("from %6s s: %s", start, c)
		if c.Fair.Gap > c.Fair.Bound {
			t.Errorf("from %s s: service gap %.0f is over the bound %.0f", start, c.Fair.Gap, c.Fair.Bound)
		}
		if c.FCFS.Gap < 2*c.Fair.Gap {
			t.Errorf("from %s s: FCFS has a gap of %.0f: the load tests nothing", start, c.FCFS.Gap)
		}
		if c.Fair.Jain() < c.FCFS.Jain() {
			t.Errorf("from %s s: Jain's index fell from %.3f to %.3f", start, c.FCFS.Jain(), c.Fair.Jain())
		}
		if c.Throughput() < 0.97 {
			t.Errorf("from %s s: throughput fell to %.3f of FCFS's", start, c.Throughput())
		}
	}
}

// Two tenants that always wait: one sends long prompts, one long answers.
func TestServiceGapOfTwoBackloggedTenants(t *testing.T) {
	var jobs []Job
	for i := range 4000 {
		at := time.Duration(i/2) * 10 * time.Millisecond
		if i%2 == 0 {
			jobs = append(jobs, Job{at, 0, 2000, 5})
		} else {
			jobs = append(jobs, Job{at, 1, 20, 400})
		}
	}
	queue, err := VTC(2)
	if err != nil {
		t.Fatal(err)
	}
	o, err := Engine{Slots: 16, Prefill: 2048, Step: 20 * time.Millisecond}.Run(jobs, 2, 5*time.Minute, queue)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("service %.0f and %.0f, gap %.0f, bound %.0f", o.Service[0], o.Service[1], o.Gap, o.Bound)
	if o.Gap > o.Bound || jain(o.Service) < 0.99 {
		t.Errorf("gap %.0f of bound %.0f, Jain %.4f", o.Gap, o.Bound, jain(o.Service))
	}
}

// TestGammaHasItsMoments: arrivals have the rate and burstiness that were
// asked for.
func TestGammaHasItsMoments(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, shape := range []float64{0.3, 1, 4} {
		const n = 200_000
		var sum, squares float64
		for range n {
			x := gamma(rng, shape, 2)
			sum, squares = sum+x, squares+x*x
		}
		mean := sum / n
		variance := squares/n - mean*mean
		if mean < 1.97*shape || mean > 2.03*shape || variance < 3.8*shape || variance > 4.2*shape {
			t.Errorf("shape %v: mean %v, variance %v; want %v and %v", shape, mean, variance, 2*shape, 4*shape)
		}
	}
}

func TestJain(t *testing.T) {
	equal := Outcome{Service: []float64{10, 10, 5}, Demand: []float64{50, 50, 5}, Total: 25}
	if got := equal.Jain(); got != 1 {
		t.Errorf("max-min shares: %v, want 1", got)
	}
	taken := Outcome{Service: []float64{20, 0}, Demand: []float64{50, 50}, Total: 20}
	if got := taken.Jain(); got != 0.5 {
		t.Errorf("one of two took all: %v, want 0.5", got)
	}
}

func TestTracesThatAreAbsentOrBroken(t *testing.T) {
	dir := t.TempDir()
	if _, err := ServeGenMLarge(dir, "0"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("absent: %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, "traces"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "traces", "servegen-m-large-rates-dev.csv.gz"), []byte("not gzip"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ServeGenMLarge(dir, "0"); err == nil {
		t.Error("a broken file was read")
	}
}
