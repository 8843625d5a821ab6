// Package gpu reads the state of NVIDIA GPUs through NVML
// (github.com/NVIDIA/go-nvml), which loads the driver's own library at run
// time. A machine without the driver has no devices; that is no error.
package gpu

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// Device is one GPU at one moment. Readings that the device does not give are
// negative: unknown is not zero.
type Device struct {
	Index       int
	UUID, Name  string
	MemoryTotal int64   // bytes
	MemoryUsed  int64   // bytes
	Utilisation float64 // 0..1, over the driver's last sample period
	PowerWatts  float64
	Celsius     float64
	// Uncorrected counts memory errors that ECC could not mend, since the driver
	// was loaded.
	Uncorrected int64
	// Slowed is 1 while the hardware slows its clocks because it is too hot, else 0.
	Slowed int
}

// Collector exports the devices' readings for Prometheus.
type Collector struct {
	read func() []Device
}

// NewCollector returns a collector over this machine's devices.
func NewCollector() *Collector { return &Collector{read: Devices} }

var (
	labels   = []string{"gpu", "uuid", "name"}
	descUsed = prometheus.NewDesc("weir_gpu_memory_used_bytes", "GPU memory in use.", labels, nil)
	descAll  = prometheus.NewDesc("weir_gpu_memory_total_bytes", "GPU memory.", labels, nil)
	descUtil = prometheus.NewDesc("weir_gpu_utilisation_ratio", "Share of time in which a kernel ran.", labels, nil)
	descWatt = prometheus.NewDesc("weir_gpu_power_watts", "Power draw.", labels, nil)
	descTemp = prometheus.NewDesc("weir_gpu_temperature_celsius", "Core temperature.", labels, nil)
	descECC  = prometheus.NewDesc("weir_gpu_uncorrected_errors", "Memory errors that ECC could not mend, since the driver was loaded.", labels, nil)
	descSlow = prometheus.NewDesc("weir_gpu_thermal_slowdown", "1 while the hardware slows its clocks because it is too hot.", labels, nil)
)

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descUsed, descAll, descUtil, descWatt, descTemp, descECC, descSlow} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	for _, d := range c.read() {
		for desc, v := range map[*prometheus.Desc]float64{
			descUsed: float64(d.MemoryUsed), descAll: float64(d.MemoryTotal), descUtil: d.Utilisation,
			descWatt: d.PowerWatts, descTemp: d.Celsius, descECC: float64(d.Uncorrected), descSlow: float64(d.Slowed),
		} {
			if v >= 0 {
				ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, strconv.Itoa(d.Index), d.UUID, d.Name)
			}
		}
	}
}
