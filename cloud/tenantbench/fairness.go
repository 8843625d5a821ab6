package tenantbench

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/weirhq/weir/internal/bench"
	"github.com/weirhq/weir/tenants/fairsim"
)

const needsTraces = "fairness of tenants needs --data with traces/servegen-m-large-*.csv.gz"

// fairness plays recorded clients under the fair queue and first come, first
// served, from three times of day, and returns the worst figure of each kind.
// Without the recordings its bars are unmeasured.
func fairness(env bench.Env) ([]bench.Bar, error) {
	if env.Data == "" {
		return bench.Unmeasured(needsTraces, fairBars(0, 0, 0)...), nil
	}
	gap, jain, throughput := 0.0, 1.0, 0.0
	for i, start := range []string{"0", "43200", "216000"} {
		clients, err := fairsim.ServeGenMLarge(env.Data, start)
		if errors.Is(err, fs.ErrNotExist) {
			return bench.Unmeasured(needsTraces, fairBars(0, 0, 0)...), nil
		}
		if err != nil {
			return nil, err
		}
		c, err := fairsim.Compare(clients)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(env.Out, "fairness from %6s s: %s\n", start, c)
		gap, jain = max(gap, c.Fair.Gap/c.Fair.Bound), min(jain, c.Fair.Jain())
		if t := c.Throughput(); i == 0 || t < throughput {
			throughput = t
		}
	}
	return fairBars(gap, jain, throughput), nil
}

func fairBars(gap, jain, throughput float64) []bench.Bar {
	return []bench.Bar{
		{Name: "tenants.fair.gap_of_bound", Measured: gap, Unit: "ratio", Want: bench.AtMost, Bound: 1},
		{Name: "tenants.fair.jain", Measured: jain},
		{Name: "tenants.fair.throughput_of_fcfs", Measured: throughput, Unit: "ratio"},
	}
}
