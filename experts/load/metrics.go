package load

import "math"

// Imbalance is max/mean of x, the time of a synchronous layer relative to a
// perfect one. It is 1 when x is empty or all zero.
func Imbalance(x []float64) float64 {
	top, sum := 0.0, 0.0
	for _, v := range x {
		top = max(top, v)
		sum += v
	}
	if sum <= 0 {
		return 1
	}
	return top * float64(len(x)) / sum
}

// Balancedness is mean/max of x, 1 for an empty or all-zero x.
func Balancedness(x []float64) float64 { return 1 / Imbalance(x) }

// Variation is the coefficient of variation, standard deviation over mean.
func Variation(x []float64) float64 {
	sum := Sum(x)
	if sum <= 0 {
		return 0
	}
	mean := sum / float64(len(x))
	ss := 0.0
	for _, v := range x {
		ss += (v - mean) * (v - mean)
	}
	return math.Sqrt(ss/float64(len(x))) / mean
}

// OverCapacity is the share of all load that lies above factor times the mean.
func OverCapacity(x []float64, factor float64) float64 {
	sum := Sum(x)
	if sum <= 0 {
		return 0
	}
	limit := factor * sum / float64(len(x))
	over := 0.0
	for _, v := range x {
		over += max(0, v-limit)
	}
	return over / sum
}

// Summary is a metric over layers: the mean tells the cost of a step, the
// maximum names the straggler.
type Summary struct {
	Mean  float64 `json:"mean"`
	Max   float64 `json:"max"`
	Layer int     `json:"layer"` // where Max is
}

// Summarise is the mean and maximum of per-layer values over the given layers.
// Without layers it is a Summary of 1s at layer -1.
func Summarise(perLayer []float64, layers []int) Summary {
	s := Summary{Mean: 1, Max: 1, Layer: -1}
	if len(layers) == 0 {
		return s
	}
	s.Mean, s.Max = 0, math.Inf(-1)
	for _, l := range layers {
		s.Mean += perLayer[l] / float64(len(layers))
		if perLayer[l] > s.Max {
			s.Max, s.Layer = perLayer[l], l
		}
	}
	return s
}

// Distortion is how far routing moved the load away from what the gate asked
// for: sum|demand-served| / sum demand, in [0, 2]. It is 0 without demand.
func Distortion(demand, served []float64) float64 {
	sum := Sum(demand)
	if sum <= 0 {
		return 0
	}
	moved := 0.0
	for e := range demand {
		moved += math.Abs(demand[e] - served[e])
	}
	return moved / sum
}
