package gpu

import (
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func gather(t *testing.T, c *Collector) map[string]int {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(c)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	n := map[string]int{}
	for _, f := range families {
		n[f.GetName()] = len(f.GetMetric())
	}
	return n
}

func TestUnknownReadingsAreLeftOut(t *testing.T) {
	c := &Collector{read: func() []Device {
		return []Device{
			{Index: 0, UUID: "a", MemoryTotal: 10, MemoryUsed: 0, Utilisation: 0.5, PowerWatts: -1, Celsius: 40, Uncorrected: 2, Slowed: 1},
			{Index: 1, UUID: "b", MemoryTotal: 10, MemoryUsed: 5, Utilisation: -1, PowerWatts: -1, Celsius: -1, Uncorrected: -1, Slowed: -1},
		}
	}}
	n := gather(t, c)
	if n["weir_gpu_memory_used_bytes"] != 2 || n["weir_gpu_utilisation_ratio"] != 1 || n["weir_gpu_power_watts"] != 0 ||
		n["weir_gpu_uncorrected_errors"] != 1 || n["weir_gpu_thermal_slowdown"] != 1 {
		t.Errorf("got %v", n)
	}
}

func TestThisMachine(t *testing.T) {
	n := gather(t, NewCollector())
	_, err := os.Stat("/proc/driver/nvidia/version")
	if has := err == nil; has != (len(n) > 0) {
		t.Errorf("driver present: %v, metrics %v", has, n)
	}
	for _, d := range Devices() {
		if d.MemoryTotal <= 0 || !strings.Contains(d.UUID, "-") {
			t.Errorf("implausible reading %+v", d)
		}
	}
}
