//go:build linux && cgo

package gpu

import (
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// library is loaded once; a driver that appears later needs a restart.
var library = sync.OnceValue(func() bool { return nvml.Init() == nvml.SUCCESS })

// Devices reads all GPUs of this machine. Without NVIDIA's driver there are
// none.
func Devices() []Device {
	if !library() {
		return nil
	}
	n, ret := nvml.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil
	}
	var out []Device
	for i := range n {
		if dev, ret := nvml.DeviceGetHandleByIndex(i); ret == nvml.SUCCESS {
			out = append(out, reading(i, dev))
		}
	}
	return out
}

func reading(i int, dev nvml.Device) Device {
	d := Device{Index: i, MemoryTotal: -1, MemoryUsed: -1, Utilisation: -1, PowerWatts: -1, Celsius: -1, Uncorrected: -1, Slowed: -1}
	d.UUID, _ = dev.GetUUID() // "" on devices that hide it
	d.Name, _ = dev.GetName()
	if m, ret := dev.GetMemoryInfo(); ret == nvml.SUCCESS {
		d.MemoryTotal, d.MemoryUsed = int64(m.Total), int64(m.Used)
	}
	if u, ret := dev.GetUtilizationRates(); ret == nvml.SUCCESS {
		d.Utilisation = float64(u.Gpu) / 100
	}
	if mw, ret := dev.GetPowerUsage(); ret == nvml.SUCCESS {
		d.PowerWatts = float64(mw) / 1000
	}
	if c, ret := dev.GetTemperature(nvml.TEMPERATURE_GPU); ret == nvml.SUCCESS {
		d.Celsius = float64(c)
	}
	if n, ret := dev.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC); ret == nvml.SUCCESS {
		d.Uncorrected = int64(n)
	}
	if why, ret := dev.GetCurrentClocksThrottleReasons(); ret == nvml.SUCCESS {
		d.Slowed = 0
		if why&nvml.ClocksThrottleReasonHwThermalSlowdown != 0 {
			d.Slowed = 1
		}
	}
	return d
}
