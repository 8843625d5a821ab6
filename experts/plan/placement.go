// Package plan places experts on devices. It is pure: a plan is a function of
// loads, fleet and options; ties go to the lowest index.
//
// Shapes: L layers, E logical experts, G devices, P physical slots. Device d
// owns a run of slots. A row phy2log [P] names the expert in each slot. A
// replica carries load[e]/replicas[e], the even split that EPLB and SGLang
// assume.
package plan

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// Errors that callers tell apart.
var (
	// ErrFleet says that the devices cannot hold the experts.
	ErrFleet = errors.New("devices cannot hold the experts")
	// ErrPlacement says that a placement breaks an invariant.
	ErrPlacement = errors.New("placement is not valid")
	// ErrLoad says that loads do not fit or are not finite and non-negative.
	ErrLoad = errors.New("loads are not usable")
	// ErrMoves says that the budget of moves is too small to hold every expert.
	ErrMoves = errors.New("move budget is too small to hold every expert")
	// ErrExpired says that planning was stopped and there is no old plan to keep.
	ErrExpired = errors.New("planning was stopped before a plan was found")
)

// Limits keep a planner's memory bounded whatever a file says.
const (
	MaxDevices = 4096
	MaxSlots   = 1 << 20
)

// Fleet is what the devices of one expert-parallel group offer. A device with
// 0 slots is out of service.
type Fleet struct {
	Slots []int     `json:"slots"`           // experts that fit, per device
	Speed []float64 `json:"speed,omitempty"` // relative, > 0; nil means equal
}

// Uniform is a fleet of equal devices.
func Uniform(devices, slots int) Fleet {
	f := Fleet{Slots: make([]int, max(0, devices))}
	for i := range f.Slots {
		f.Slots[i] = slots
	}
	return f
}

// Even is a fleet of equal devices for E experts and the given number of spare
// slots. E+spare must divide by devices (ErrFleet).
func Even(experts, devices, spare int) (Fleet, error) {
	if experts < 1 || devices < 1 || spare < 0 || devices > MaxDevices || spare > MaxSlots {
		return Fleet{}, fmt.Errorf("%w: %d experts, %d devices, %d spare slots", ErrFleet, experts, devices, spare)
	}
	slots := experts + spare
	if slots%devices != 0 {
		up := (slots + devices - 1) / devices * devices
		return Fleet{}, fmt.Errorf("%w: %d experts and %d spare slots do not divide over %d devices; %d spare slots would",
			ErrFleet, experts, spare, devices, up-experts)
	}
	f := Uniform(devices, slots/devices)
	return f, f.Validate(experts)
}

// Devices is the number of devices, those out of service included.
func (f Fleet) Devices() int { return len(f.Slots) }

// Total is the number of slots.
func (f Fleet) Total() int {
	n := 0
	for _, s := range f.Slots {
		n += s
	}
	return n
}

// speed of device d; 0 when it is out of service.
func (f Fleet) speed(d int) float64 {
	switch {
	case f.Slots[d] == 0:
		return 0
	case f.Speed == nil:
		return 1
	}
	return f.Speed[d]
}

// Capacity is the sum of speeds of the devices in service.
func (f Fleet) Capacity() float64 {
	sum := 0.0
	for d := range f.Slots {
		sum += f.speed(d)
	}
	return sum
}

// active is the number of devices in service.
func (f Fleet) active() int {
	n := 0
	for _, s := range f.Slots {
		if s > 0 {
			n++
		}
	}
	return n
}

// Validate checks that a placement without duplicates of that many experts
// exists: every expert gets a slot and no device has more slots than experts.
func (f Fleet) Validate(experts int) error {
	if len(f.Slots) == 0 || len(f.Slots) > MaxDevices {
		return fmt.Errorf("%w: %d devices", ErrFleet, len(f.Slots))
	}
	if f.Speed != nil && len(f.Speed) != len(f.Slots) {
		return fmt.Errorf("%w: %d speeds for %d devices", ErrFleet, len(f.Speed), len(f.Slots))
	}
	for d, s := range f.Slots {
		if s < 0 || s > experts {
			return fmt.Errorf("%w: device %d has %d slots for %d experts; more would hold an expert twice", ErrFleet, d, s, experts)
		}
		if f.Speed != nil && !(f.Speed[d] > 0 && f.Speed[d] <= math.MaxFloat32) {
			return fmt.Errorf("%w: device %d has speed %v", ErrFleet, d, f.Speed[d])
		}
	}
	if t := f.Total(); t < experts || t > MaxSlots {
		return fmt.Errorf("%w: %d slots for %d experts", ErrFleet, t, experts)
	}
	return nil
}

// first returns the first slot of each device and, last, the number of slots.
func (f Fleet) first() []int {
	out := make([]int, len(f.Slots)+1)
	for d, s := range f.Slots {
		out[d+1] = out[d] + s
	}
	return out
}

// same reports equal slots per device.
func (f Fleet) same(g Fleet) bool {
	if len(f.Slots) != len(g.Slots) {
		return false
	}
	for d, s := range f.Slots {
		if s != g.Slots[d] {
			return false
		}
	}
	return true
}

// Placement is where the experts of every layer are.
type Placement struct {
	Experts int     `json:"experts"`
	Fleet   Fleet   `json:"fleet"`
	Layers  [][]int `json:"layers"` // phy2log, [layer][slot]
}

// Trivial puts expert i mod E into slot i of every layer, as engines do without
// a plan.
func Trivial(layers, experts int, fleet Fleet) Placement {
	p := Placement{Experts: experts, Fleet: fleet, Layers: make([][]int, layers)}
	for l := range p.Layers {
		p.Layers[l] = trivialRow(experts, fleet.Total())
	}
	return p
}

func trivialRow(experts, slots int) []int {
	row := make([]int, slots)
	for i := range row {
		row[i] = i % experts
	}
	return row
}

// Validate checks the invariants: every expert at least once per layer, no
// expert twice on a device, P entries in range.
func (p Placement) Validate() error {
	if err := p.validate(); err != nil {
		return err
	}
	for l, row := range p.Layers {
		if d, e := p.duplicate(row); d >= 0 {
			return fmt.Errorf("%w: layer %d holds expert %d twice on device %d", ErrPlacement, l, e, d)
		}
	}
	return nil
}

// validate is Validate but for duplicates, which EPLB allows.
func (p Placement) validate() error {
	if p.Experts < 1 {
		return fmt.Errorf("%w: %d experts", ErrPlacement, p.Experts)
	}
	slots := p.Fleet.Total()
	seen := make([]int, p.Experts)
	for l, row := range p.Layers {
		if len(row) != slots {
			return fmt.Errorf("%w: layer %d has %d slots, the devices have %d", ErrPlacement, l, len(row), slots)
		}
		for s, e := range row {
			if e < 0 || e >= p.Experts {
				return fmt.Errorf("%w: layer %d slot %d holds expert %d of %d", ErrPlacement, l, s, e, p.Experts)
			}
			seen[e] = l + 1
		}
		for e, at := range seen {
			if at != l+1 {
				return fmt.Errorf("%w: layer %d has no slot for expert %d", ErrPlacement, l, e)
			}
		}
	}
	return nil
}

// duplicate finds the first device that holds an expert twice, or -1, -1.
func (p Placement) duplicate(row []int) (device, expert int) {
	on := make([]int, p.Experts)
	at := 0
	for d, n := range p.Fleet.Slots {
		for _, e := range row[at : at+n] {
			if on[e] == d+1 {
				return d, e
			}
			on[e] = d + 1
		}
		at += n
	}
	return -1, -1
}

// Duplicates counts slots wasted on a second copy of an expert on one device.
func (p Placement) Duplicates() int {
	n, at := 0, 0
	for d, s := range p.Fleet.Slots {
		for _, row := range p.Layers {
			on := make(map[int]bool, s)
			for _, e := range row[at : at+s] {
				if on[e] {
					n++
				}
				on[e] = true
			}
		}
		at += p.Fleet.Slots[d]
	}
	return n
}

// Replicas is logcnt of one layer: the number of slots of each expert.
func (p Placement) Replicas(layer int) []int {
	cnt := make([]int, p.Experts)
	for _, e := range p.Layers[layer] {
		cnt[e]++
	}
	return cnt
}

// SlotsOf is log2phy of one layer: the slots of each expert, ascending.
func (p Placement) SlotsOf(layer int) [][]int {
	out := make([][]int, p.Experts)
	for s, e := range p.Layers[layer] {
		out[e] = append(out[e], s)
	}
	return out
}

// DeviceLoads is the load of each device in service under even split, divided
// by its speed, for one layer.
func (p Placement) DeviceLoads(layer int, load []float64) []float64 {
	cnt := p.Replicas(layer)
	out := make([]float64, 0, len(p.Fleet.Slots))
	at := 0
	for d, n := range p.Fleet.Slots {
		sum := 0.0
		for _, e := range p.Layers[layer][at : at+n] {
			sum += load[e] / float64(cnt[e])
		}
		at += n
		if n > 0 {
			out = append(out, sum/p.Fleet.speed(d))
		}
	}
	return out
}

// Imbalance is the highest device load over the ideal one, W/sum of speeds,
// for one layer. It is 1 for a layer without load.
func (p Placement) Imbalance(layer int, load []float64) float64 {
	sum := 0.0
	for _, x := range load {
		sum += x
	}
	if sum <= 0 {
		return 1
	}
	top := 0.0
	for _, x := range p.DeviceLoads(layer, load) {
		top = max(top, x)
	}
	return top * p.Fleet.Capacity() / sum
}

// Incoming is the number of experts that devices have to receive in one layer
// to go from old to p. Slot order inside a device is free. A device that old
// does not know holds nothing.
func (p Placement) Incoming(layer int, old Placement) int {
	n, at := 0, 0
	now, before := p.Layers[layer], old.sets(layer)
	for d, s := range p.Fleet.Slots {
		for i, e := range now[at : at+s] {
			if slices.Contains(now[at:at+i], e) || d < len(before) && slices.Contains(before[d], int32(e)) {
				continue
			}
			n++
		}
		at += s
	}
	return n
}
