package fair

import (
	"math"
	"math/rand/v2"
	"time"
)

// job is one request of a workload.
type job struct {
	at            time.Duration
	client        int
	input, output int64
}

// order is what the simulated pool takes its next request from.
type order interface {
	push(j *running, now time.Time)
	next(now time.Time) *running
	served(j *running, now time.Time)
	done(j *running)
}

type running struct {
	job
	item      Item
	prefilled int64
	produced  int64
}

// vtc is the queue under test; fcfs is first come, first served.
type vtc struct {
	q     *Queue
	names []string
}

func (v *vtc) push(j *running, now time.Time) {
	j.item = Item{Tenant: v.names[j.client], Input: j.input, Value: j}
	if r, _ := v.q.Push(&j.item, &Pool{}, now); r != Accepted {
		panic(r.String())
	}
}

func (v *vtc) next(now time.Time) *running {
	if it := v.q.Next(&Pool{}, now); it != nil {
		return it.Value.(*running)
	}
	return nil
}

func (v *vtc) served(j *running, now time.Time) { v.q.Served(&j.item, 1, now) }
func (v *vtc) done(j *running)                  { v.q.Done(&j.item) }

type fcfs struct{ list []*running }

func (f *fcfs) push(j *running, _ time.Time) { f.list = append(f.list, j) }

func (f *fcfs) next(time.Time) *running {
	if len(f.list) == 0 {
		return nil
	}
	j := f.list[0]
	f.list = f.list[1:]
	return j
}

func (*fcfs) served(*running, time.Time) {}
func (*fcfs) done(*running)              {}

// engine is a pool of one instance with continuous batching: each step
// prefills up to a budget of tokens, in order, and gives every prefilled
// request one token.
type engine struct {
	slots   int
	prefill int64
	step    time.Duration
}

// outcome is what a run gave each client.
type outcome struct {
	service []float64 // input + 2 * output tokens
	total   float64
	demand  []float64 // of what arrived
	gap     float64   // largest service gap of two clients, both waiting all the while
	bound   float64   // of VTC for this run
	backlog []int     // steps in which the client had something waiting
	steps   int
}

// run plays the jobs, which come by time, for a length of time.
func (e engine) run(jobs []job, clients int, length time.Duration, q order) outcome {
	o := outcome{service: make([]float64, clients), demand: make([]float64, clients), backlog: make([]int, clients)}
	waiting := make([]int, clients)
	gaps := newGaps(clients)
	var batch []*running
	var maxInput, maxBatch float64
	for t := time.Duration(0); t < length; t += e.step {
		now := noon.Add(t)
		for len(jobs) > 0 && jobs[0].at <= t {
			j := &running{job: jobs[0]}
			jobs = jobs[1:]
			q.push(j, now)
			waiting[j.client]++
			o.demand[j.client] += float64(j.input + 2*j.output)
			maxInput = max(maxInput, float64(j.input))
		}
		for len(batch) < e.slots {
			j := q.next(now)
			if j == nil {
				break
			}
			waiting[j.client]--
			o.service[j.client] += float64(j.input) // VTC counts the prompt when it is taken
			batch = append(batch, j)
		}
		batch = e.advance(batch, q, now, o.service)
		maxBatch = max(maxBatch, held(batch))
		gaps.observe(o.service, waiting)
		for c, n := range waiting {
			if n > 0 {
				o.backlog[c]++
			}
		}
		o.steps++
	}
	for _, s := range o.service {
		o.total += s
	}
	// Theorem 4.4 of the paper: 2 * max(w_input * L_input, w_output * M).
	o.gap, o.bound = gaps.worst, 2*max(maxInput, 2*maxBatch)
	return o
}

func held(batch []*running) (tokens float64) {
	for _, j := range batch {
		tokens += float64(j.input + j.produced)
	}
	return tokens
}

func (e engine) advance(batch []*running, q order, now time.Time, service []float64) []*running {
	budget := e.prefill
	left := batch[:0]
	for _, j := range batch {
		if missing := j.input - j.prefilled; missing > 0 {
			n := min(missing, budget)
			budget -= n
			j.prefilled += n
			left = append(left, j)
			continue
		}
		j.produced++
		service[j.client] += 2
		q.served(j, now)
		if j.produced < j.output {
			left = append(left, j)
		} else {
			q.done(j)
		}
	}
	return left
}

// gaps finds the largest difference in service of two clients over any
// interval in which both had something waiting.
type gaps struct {
	n        int
	since    []int // how often the client has begun to wait; negative: idle
	active   []int
	together [][2]int // since of both when the pair's interval began
	low, hi  []float64
	worst    float64
}

func newGaps(n int) *gaps {
	return &gaps{n: n, since: make([]int, n), together: make([][2]int, n*n), low: make([]float64, n*n), hi: make([]float64, n*n)}
}

func (g *gaps) observe(service []float64, waiting []int) {
	g.active = g.active[:0]
	for c, n := range waiting {
		switch {
		case n > 0:
			g.since[c] = max(g.since[c], -g.since[c]+1)
			g.active = append(g.active, c)
		case g.since[c] > 0:
			g.since[c] = -g.since[c]
		}
	}
	for k, a := range g.active {
		for _, b := range g.active[:k] {
			i, d := a*g.n+b, service[a]-service[b]
			if now := [2]int{g.since[a], g.since[b]}; g.together[i] != now {
				g.together[i], g.low[i], g.hi[i] = now, d, d
			}
			g.low[i], g.hi[i] = min(g.low[i], d), max(g.hi[i], d)
			g.worst = max(g.worst, g.hi[i]-g.low[i])
		}
	}
}

// jain is Jain's fairness index, 1 when all are equal.
func jain(x []float64) float64 {
	var sum, squares float64
	for _, v := range x {
		sum += v
		squares += v * v
	}
	if squares == 0 {
		return 1
	}
	return sum * sum / (float64(len(x)) * squares)
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
