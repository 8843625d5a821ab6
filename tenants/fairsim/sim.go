// Package fairsim plays requests on a simulated pool that cannot serve them
// all, under the fair queue or first come, first served, and measures what each
// client got. It needs no clock: a run takes as long as its arithmetic.
package fairsim

import (
	"fmt"
	"time"

	"github.com/weirhq/weir/tenants/fair"
)

// Job is one request of a workload.
type Job struct {
	At            time.Duration // since the start
	Client        int
	Input, Output int64 // tokens
}

// Order is what the simulated pool takes its next request from.
type Order interface {
	push(j *running, now time.Time) error
	next(now time.Time) *running
	served(j *running, now time.Time)
	done(j *running)
}

type running struct {
	Job
	item      fair.Item
	prefilled int64
	produced  int64
}

// noon is when every run starts.
var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

type vtc struct {
	q     *fair.Queue
	names []string
}

// VTC is the fair queue over as many clients, which weigh the same, without
// decay of old service, as the bound of its paper has it.
func VTC(clients int) (Order, error) {
	o := fair.DefaultOptions()
	o.HalfLife, o.Holdback, o.PerToken = 0, 0, 0
	q, err := fair.New(o, noon)
	if err != nil {
		return nil, fmt.Errorf("simulate the fair queue: %w", err)
	}
	v := &vtc{q, make([]string, clients)}
	for i := range v.names {
		v.names[i] = fmt.Sprintf("client-%03d", i)
	}
	return v, nil
}

func (v *vtc) push(j *running, now time.Time) error {
	j.item = fair.Item{Tenant: v.names[j.Client], Input: j.Input, Value: j}
	if r, _ := v.q.Push(&j.item, &fair.Pool{}, now); r != fair.Accepted {
		return fmt.Errorf("simulate the fair queue: a request was refused: %s", r)
	}
	return nil
}

func (v *vtc) next(now time.Time) *running {
	if it := v.q.Next(&fair.Pool{}, now); it != nil {
		return it.Value.(*running)
	}
	return nil
}

func (v *vtc) served(j *running, now time.Time) { v.q.Served(&j.item, 1, now) }
func (v *vtc) done(j *running)                  { v.q.Done(&j.item) }

type fcfs struct{ list []*running }

// FCFS is first come, first served.
func FCFS() Order { return &fcfs{} }

func (f *fcfs) push(j *running, _ time.Time) error {
	f.list = append(f.list, j)
	return nil
}

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

// Engine is a pool of one instance with continuous batching: each step
// prefills up to a budget of tokens, in order, and gives every prefilled
// request one token.
type Engine struct {
	Slots   int   // requests at a time
	Prefill int64 // tokens per step
	Step    time.Duration
}

// Outcome is what a run gave each client. Service is input tokens and twice
// the output tokens.
type Outcome struct {
	Service []float64 // that each client got
	Demand  []float64 // of what arrived from each
	Total   float64   // service of all
	Gap     float64   // largest service gap of two clients, both waiting all the while
	Bound   float64   // VTC's bound of it for this run
}

// Run plays the jobs of clients, which come by time, for a length of time.
func (e Engine) Run(jobs []Job, clients int, length time.Duration, q Order) (Outcome, error) {
	o := Outcome{Service: make([]float64, clients), Demand: make([]float64, clients)}
	waiting := make([]int, clients)
	gaps := newGaps(clients)
	var batch []*running
	var maxInput, maxBatch float64
	for t := time.Duration(0); t < length; t += e.Step {
		now := noon.Add(t)
		for len(jobs) > 0 && jobs[0].At <= t {
			j := &running{Job: jobs[0]}
			jobs = jobs[1:]
			if err := q.push(j, now); err != nil {
				return o, err
			}
			waiting[j.Client]++
			o.Demand[j.Client] += float64(j.Input + 2*j.Output)
			maxInput = max(maxInput, float64(j.Input))
		}
		for len(batch) < e.Slots {
			j := q.next(now)
			if j == nil {
				break
			}
			waiting[j.Client]--
			o.Service[j.Client] += float64(j.Input) // VTC counts the prompt when it is taken
			batch = append(batch, j)
		}
		batch = e.advance(batch, q, now, o.Service)
		maxBatch = max(maxBatch, held(batch))
		gaps.observe(o.Service, waiting)
	}
	for _, s := range o.Service {
		o.Total += s
	}
	// Theorem 4.4 of the paper: 2 * max(w_input * L_input, w_output * M).
	o.Gap, o.Bound = gaps.worst, 2*max(maxInput, 2*maxBatch)
	return o, nil
}

func held(batch []*running) (tokens float64) {
	for _, j := range batch {
		tokens += float64(j.Input + j.produced)
	}
	return tokens
}

func (e Engine) advance(batch []*running, q Order, now time.Time, service []float64) []*running {
	budget := e.Prefill
	left := batch[:0]
	for _, j := range batch {
		if missing := j.Input - j.prefilled; missing > 0 {
			n := min(missing, budget)
			budget -= n
			j.prefilled += n
			left = append(left, j)
			continue
		}
		j.produced++
		service[j.Client] += 2
		q.served(j, now)
		if j.produced < j.Output {
			left = append(left, j)
		} else {
			q.done(j)
		}
	}
	return left
}
