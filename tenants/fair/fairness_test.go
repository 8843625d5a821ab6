package fair

import (
	"cmp"
	"compress/gzip"
	"encoding/csv"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"
)

// traceFile opens a trace of the data folder beside the repository.
func traceFile(t testing.TB, name string) [][]string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("no go.mod above the test")
		}
		dir = filepath.Dir(dir)
	}
	f, err := os.Open(filepath.Join(dir, "..", "shared", "data", "traces", name))
	if err != nil {
		t.Skipf("trace %s is not beside this checkout: %v", name, err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(z).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	return rows[1:]
}

// client is one of ServeGen's m-large clients in the first ten minutes of a
// six-hour window.
type client struct {
	rate, cv      float64
	input, output []float64 // quantiles
}

var levels = []float64{0, .01, .05, .10, .25, .50, .75, .90, .95, .99, .999, 1}

func number(t testing.TB, s string) float64 {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// loadClients reads the clients that send in the ten minutes from start (s).
func loadClients(t testing.TB, start string) []client {
	found := map[string]*client{}
	for _, r := range traceFile(t, "servegen-m-large-rates-dev.csv.gz") {
		if r[1] == start {
			found[r[0]] = &client{rate: number(t, r[2]), cv: number(t, r[3])}
		}
	}
	for _, r := range traceFile(t, "servegen-m-large-lengths-dev.csv.gz") {
		c := found[r[0]]
		if c == nil || r[1] != start {
			continue
		}
		q := []float64{1}
		for _, s := range r[4:] {
			q = append(q, number(t, s))
		}
		if r[2] == "input_tokens" {
			c.input = q
		} else {
			c.output = q
		}
	}
	var names []string
	for name, c := range found {
		if c.input != nil && c.output != nil { // the heaviest files have no lengths
			names = append(names, name)
		}
	}
	slices.Sort(names)
	out := make([]client, len(names))
	for i, name := range names {
		out[i] = *found[name]
	}
	return out
}

func draw(rng *rand.Rand, quantiles []float64) int64 {
	u := rng.Float64()
	i := 1
	for u > levels[i] {
		i++
	}
	part := (u - levels[i-1]) / (levels[i] - levels[i-1])
	return max(int64(quantiles[i-1]+part*(quantiles[i]-quantiles[i-1])), 1)
}

// makeJobs draws arrivals by each client's rate and burstiness, all rates
// multiplied by scale.
func makeJobs(rng *rand.Rand, clients []client, scale float64, length time.Duration) (jobs []job) {
	for i, c := range clients {
		shape := 1 / (c.cv * c.cv)
		for t := 0.0; ; {
			t += gamma(rng, shape, 1/(c.rate*scale*shape))
			at := time.Duration(t * float64(time.Second))
			if at >= length {
				break
			}
			jobs = append(jobs, job{at, i, draw(rng, c.input), min(draw(rng, c.output), 1000)})
		}
	}
	slices.SortStableFunc(jobs, func(a, b job) int { return cmp.Compare(a.at, b.at) })
	return jobs
}

// ideal is what each client would get of a capacity under max-min fairness.
func ideal(demand []float64, capacity float64) []float64 {
	order := make([]int, len(demand))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(demand[a], demand[b]) })
	out := make([]float64, len(demand))
	for n, i := range order {
		out[i] = min(demand[i], capacity/float64(len(order)-n))
		capacity -= out[i]
	}
	return out
}

// fairIndex is Jain's index over what clients got of what max-min fairness
// would have given them.
func fairIndex(o outcome) float64 {
	parts := []float64{}
	for i, want := range ideal(o.demand, o.total) {
		if want > 0 {
			parts = append(parts, o.service[i]/want)
		}
	}
	return jain(parts)
}

func TestServiceGapWithinBoundOnRealClients(t *testing.T) {
	const length = 10 * time.Minute
	for _, start := range []string{"0", "43200", "216000"} {
		clients := loadClients(t, start)
		if len(clients) < 20 {
			t.Fatalf("%d clients at %s s", len(clients), start)
		}
		jobs := makeJobs(rand.New(rand.NewPCG(1, 2)), clients, 0.1, length)
		names := make([]string, len(clients))
		for i := range names {
			names[i] = fmt.Sprintf("client-%02d", i)
		}
		e := engine{slots: 24, prefill: 384, step: 50 * time.Millisecond}
		fair := e.run(jobs, len(clients), length, &vtc{queue(t, nil), names})
		first := e.run(jobs, len(clients), length, &fcfs{})
		t.Logf("from %6s s: %d clients, %d requests, service gap %.0f of bound %.0f (FCFS %.0f); Jain %.3f (FCFS %.3f); throughput %.4f of FCFS",
			start, len(clients), len(jobs), fair.gap, fair.bound, first.gap, fairIndex(fair), fairIndex(first), fair.total/first.total)
		if fair.gap > fair.bound {
			t.Errorf("from %s s: service gap %.0f is over the bound %.0f", start, fair.gap, fair.bound)
		}
		if first.gap < 2*fair.gap {
			t.Errorf("from %s s: FCFS has a gap of %.0f: the load tests nothing", start, first.gap)
		}
		if fairIndex(fair) < fairIndex(first) {
			t.Errorf("from %s s: Jain's index fell from %.3f to %.3f", start, fairIndex(first), fairIndex(fair))
		}
		if fair.total < 0.97*first.total {
			t.Errorf("from %s s: throughput fell to %.3f of FCFS", start, fair.total/first.total)
		}
	}
}

// Two tenants that always wait: one sends long prompts, one long answers.
func TestServiceGapOfTwoBackloggedTenants(t *testing.T) {
	var jobs []job
	for i := range 4000 {
		at := time.Duration(i/2) * 10 * time.Millisecond
		if i%2 == 0 {
			jobs = append(jobs, job{at, 0, 2000, 5})
		} else {
			jobs = append(jobs, job{at, 1, 20, 400})
		}
	}
	e := engine{slots: 16, prefill: 2048, step: 20 * time.Millisecond}
	o := e.run(jobs, 2, 5*time.Minute, &vtc{queue(t, nil), []string{"prompts", "answers"}})
	t.Logf("service %.0f and %.0f, gap %.0f, bound %.0f", o.service[0], o.service[1], o.gap, o.bound)
	if o.gap > o.bound || jain(o.service) < 0.99 {
		t.Errorf("gap %.0f of bound %.0f, Jain %.4f", o.gap, o.bound, jain(o.service))
	}
}
