package fairsim

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// Comparison is the same workload under both orders.
type Comparison struct {
	Clients, Requests int
	Fair, FCFS        Outcome
}

// Compare plays ten minutes of the clients' arrivals, at a tenth of their
// rates, on a pool that cannot serve them all.
func Compare(clients []Client) (Comparison, error) {
	const length = 10 * time.Minute
	jobs := Jobs(rand.New(rand.NewPCG(1, 2)), clients, 0.1, length)
	c := Comparison{Clients: len(clients), Requests: len(jobs)}
	queue, err := VTC(len(clients))
	if err != nil {
		return c, err
	}
	e := Engine{Slots: 24, Prefill: 384, Step: 50 * time.Millisecond}
	if c.Fair, err = e.Run(jobs, len(clients), length, queue); err != nil {
		return c, err
	}
	c.FCFS, err = e.Run(jobs, len(clients), length, FCFS())
	return c, err
}

// Throughput is the fair order's in units of FCFS's: below 1 it costs some.
func (c Comparison) Throughput() float64 { return c.Fair.Total / c.FCFS.Total }

func (c Comparison) String() string {
	return fmt.Sprintf("%d clients, %d requests, service gap %.0f of bound %.0f (FCFS %.0f), Jain %.3f (FCFS %.3f), throughput %.2f of FCFS's",
		c.Clients, c.Requests, c.Fair.Gap, c.Fair.Bound, c.FCFS.Gap, c.Fair.Jain(), c.FCFS.Jain(), c.Throughput())
}
