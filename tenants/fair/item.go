package fair

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Item is one waiting request. The caller makes it, fills the exported fields
// and keeps it in place; the queue links it in without allocating.
type Item struct {
	Tenant string
	Value  any // the caller's
	// Deadline is for the first token; zero goes behind all deadlines.
	Deadline time.Time
	// MaxQueue is how long it may wait; zero stands for no limit.
	MaxQueue  time.Duration
	Sheddable bool
	Band      int     // 0 goes first
	Weight    float64 // tenant's times class's share; 0 stands for 1
	Input     int64   // prompt tokens, as estimated

	// What Next reads lies together, with the two fields above.
	flow      *flow
	deadline  int64 // Unix microseconds; noDeadline for none
	expires   int64 // Unix microseconds; 0 for none
	seq       uint32
	handle    uint32 // in the queue's table
	queued    bool
	running   bool
	sheddable bool // as it was when queued
}

const noDeadline = math.MaxInt64

func (it *Item) weight() float64 {
	if it.Weight == 0 {
		return 1
	}
	return it.Weight
}

// Options are a queue's parameters. DefaultOptions gives those that fit most.
type Options struct {
	Bands        int // number of priority bands
	MaxQueued    int // over all tenants
	MaxPerTenant int // and of one tenant in one band
	// InputCost and OutputCost are what a token costs a tenant (VTC: 1 and 2).
	InputCost, OutputCost float64
	// PerToken delays a prompt's place by its length, which mixes deadline
	// order with shortest first (Niyama: 8 ms per token).
	PerToken time.Duration
	// HalfLife lets old service fade from the counters; zero keeps it for good.
	HalfLife time.Duration
	// Holdback is what the last band leaves free for higher ones, as a part of
	// saturation; bands between get their part of it by rank. At zero the queue
	// is work-conserving for every band.
	Holdback float64
	// ShedAt is the saturation from which sheddable requests are refused on
	// arrival; zero never does.
	ShedAt float64
}

// DefaultOptions returns VTC's costs, Niyama's order, three bands, a tenth of
// holdback and bounds that keep a queue under about 50 MB.
func DefaultOptions() Options {
	return Options{
		Bands: 3, MaxQueued: 100_000, MaxPerTenant: 10_000,
		InputCost: 1, OutputCost: 2, PerToken: 8 * time.Millisecond,
		HalfLife: 10 * time.Minute, Holdback: 0.1, ShedAt: 1.5,
	}
}

// Validate reports the first parameter that makes no sense.
func (o Options) Validate() error {
	switch {
	case o.Bands < 1 || o.Bands > 16:
		return fmt.Errorf("bands: %d, want 1 to 16", o.Bands)
	case o.MaxQueued < 1 || o.MaxPerTenant < 1:
		return errors.New("max queued and max per tenant: want at least 1")
	case !(o.InputCost >= 0) || !(o.OutputCost >= 0) || o.InputCost+o.OutputCost == 0 || math.IsInf(o.InputCost+o.OutputCost, 0):
		return errors.New("token costs: want at least 0, and not both 0")
	case o.PerToken < 0 || o.PerToken > time.Minute:
		return errors.New("per token: want 0 to 1 minute")
	case o.HalfLife < 0 || o.HalfLife > 0 && o.HalfLife < time.Second:
		return errors.New("half-life: want 0 or at least 1 s")
	case !(o.Holdback >= 0 && o.Holdback < 1):
		return errors.New("holdback: want 0 to below 1")
	case !(o.ShedAt >= 0):
		return errors.New("shed at: want at least 0")
	}
	return nil
}

// Refusal says why an item was not queued, or left the queue unserved.
type Refusal uint8

// Refusals. All but BadItem answer with Retry-After.
const (
	Accepted      Refusal = iota
	BadItem               // unknown band, bad weight, already queued
	QueueFull             // 503: the queue's bound, and nothing could make room
	TenantFull            // 429: the tenant's own bound
	Shed                  // 503: sheddable, and the pool is too busy or had to make room
	QueueTimedOut         // 503: waited for MaxQueue
	numRefusals
)

var refusalNames = [numRefusals]string{"accepted", "bad_item", "queue_full", "tenant_queue_full", "shed_by_slo_class", "queue_timeout"}

// String returns the refusal's name for errors and metrics.
func (r Refusal) String() string {
	if r < numRefusals {
		return refusalNames[r]
	}
	return "unknown"
}
