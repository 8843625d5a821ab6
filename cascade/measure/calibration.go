package measure

import "math"

// Bin is one bar of a reliability diagram.
type Bin struct {
	Weight float64 // sum of weights
	P      float64 // mean predicted probability
	Y      float64 // mean outcome
}

// Reliability sorts predictions into n equal bins of [0, 1]. w may be nil.
func Reliability(p, y, w []float64, n int) []Bin {
	bins := make([]Bin, n)
	for i, pi := range p {
		b := &bins[max(0, min(n-1, int(pi*float64(n))))]
		wi := 1.0
		if w != nil {
			wi = w[i]
		}
		b.Weight += wi
		b.P += wi * pi
		b.Y += wi * y[i]
	}
	for i := range bins {
		if b := &bins[i]; b.Weight > 0 {
			b.P /= b.Weight
			b.Y /= b.Weight
		}
	}
	return bins
}

// ECE is the expected calibration error over the bins: the mean distance of
// predicted and true frequency. NaN without weight.
func ECE(bins []Bin) float64 {
	sum, total := 0.0, 0.0
	for _, b := range bins {
		sum += b.Weight * math.Abs(b.P-b.Y)
		total += b.Weight
	}
	return sum / total
}

// Brier is the mean squared error of predictions.
func Brier(p, y []float64) float64 {
	s := 0.0
	for i := range p {
		s += (p[i] - y[i]) * (p[i] - y[i])
	}
	return s / float64(len(p))
}

// LogLoss is the mean negative log-likelihood, nats, of clipped predictions.
func LogLoss(p, y []float64) float64 {
	s := 0.0
	for i := range p {
		q := math.Max(1e-6, math.Min(1-1e-6, p[i]))
		s -= y[i]*math.Log(q) + (1-y[i])*math.Log(1-q)
	}
	return s / float64(len(p))
}
