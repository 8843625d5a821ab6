//go:build !linux || !cgo

package gpu

// Devices finds none: NVML is used on Linux, in builds with cgo.
func Devices() []Device { return nil }
