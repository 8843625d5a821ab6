package fairsim

import (
	"cmp"
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

// Client is one of ServeGen's clients (arXiv 2505.09999) in the first ten
// minutes of a window of six hours.
type Client struct {
	rate, cv      float64   // arrivals per second, coefficient of variation of their distance
	input, output []float64 // tokens at levels
}

// levels are the quantiles of lengths; the files begin with the second.
var levels = []float64{0, .01, .05, .10, .25, .50, .75, .90, .95, .99, .999, 1}

// ServeGenMLarge reads the clients of the m-large workload that send in the
// ten minutes from start, in seconds, from the folder traces of dir. Clients
// whose lengths the files lack are left out. The error wraps fs.ErrNotExist
// where the files are absent.
func ServeGenMLarge(dir, start string) ([]Client, error) {
	found := map[string]*Client{}
	err := eachRow(filepath.Join(dir, "traces", "servegen-m-large-rates-dev.csv.gz"), 4, func(r []string) error {
		if r[1] != start {
			return nil
		}
		v, err := numbers(r[2:4])
		if err == nil && (v[0] <= 0 || v[1] <= 0) {
			err = errors.New("want a positive rate and variation")
		}
		if err == nil {
			found[r[0]] = &Client{rate: v[0], cv: v[1]}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read ServeGen's clients: %w", err)
	}
	err = eachRow(filepath.Join(dir, "traces", "servegen-m-large-lengths-dev.csv.gz"), 4+len(levels)-1, func(r []string) error {
		c := found[r[0]]
		if c == nil || r[1] != start {
			return nil
		}
		q, err := numbers(r[4 : 4+len(levels)-1])
		if q = append([]float64{1}, q...); r[2] == "input_tokens" {
			c.input = q
		} else {
			c.output = q
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read ServeGen's clients: %w", err)
	}
	var names []string
	for name, c := range found {
		if c.input != nil && c.output != nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	out := make([]Client, len(names))
	for i, name := range names {
		out[i] = *found[name]
	}
	return out, nil
}

// eachRow calls f with every row behind the first of a compressed CSV file.
func eachRow(path string, width int, f func([]string) error) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	z, err := gzip.NewReader(file)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	rows, err := csv.NewReader(z).ReadAll()
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for i, r := range rows[min(1, len(rows)):] {
		if len(r) < width {
			return fmt.Errorf("%s: row %d has %d columns, want %d", path, i+2, len(r), width)
		}
		if err := f(r); err != nil {
			return fmt.Errorf("%s: row %d: %w", path, i+2, err)
		}
	}
	return nil
}

func numbers(texts []string) ([]float64, error) {
	out := make([]float64, len(texts))
	for i, s := range texts {
		var err error
		if out[i], err = strconv.ParseFloat(s, 64); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// maxOutput keeps one answer from outlasting a run.
const maxOutput = 1000

// Jobs draws arrivals by each client's rate and burstiness, all rates
// multiplied by scale, for a length of time.
func Jobs(rng *rand.Rand, clients []Client, scale float64, length time.Duration) (jobs []Job) {
	for i, c := range clients {
		shape := 1 / (c.cv * c.cv)
		for t := 0.0; ; {
			t += gamma(rng, shape, 1/(c.rate*scale*shape))
			at := time.Duration(t * float64(time.Second))
			if at >= length {
				break
			}
			jobs = append(jobs, Job{at, i, draw(rng, c.input), min(draw(rng, c.output), maxOutput)})
		}
	}
	slices.SortStableFunc(jobs, func(a, b Job) int { return cmp.Compare(a.At, b.At) })
	return jobs
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

// gamma draws from a Gamma distribution (Marsaglia and Tsang 2000).
func gamma(rng *rand.Rand, shape, scale float64) float64 {
	if shape < 1 {
		return gamma(rng, shape+1, scale) * math.Pow(rng.Float64(), 1/shape)
	}
	d := shape - 1.0/3
	c := 1 / math.Sqrt(9*d)
	for {
		x := rng.NormFloat64()
		v := math.Pow(1+c*x, 3)
		if v > 0 && math.Log(rng.Float64()) < x*x/2+d-d*v+d*math.Log(v) {
			return d * v * scale
		}
	}
}
