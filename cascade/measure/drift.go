package measure

import "math"

// Detector is told value by value and says when it raises an alarm.
type Detector interface{ Observe(x float64) bool }

// Alarms returns the positions of the values at which the detector raises an
// alarm.
func Alarms(d Detector, values []float64) (at []int) {
	for i, v := range values {
		if d.Observe(v) {
			at = append(at, i)
		}
	}
	return at
}

// Delay is how many values the detector needs, the alarm's included, to notice
// that values come from next now; at most limit, and false where it does not.
func Delay(d Detector, next func() float64, limit int) (n int, noticed bool) {
	for n = 1; n <= limit; n++ {
		if d.Observe(next()) {
			return n, true
		}
	}
	return limit, false
}

// MeanSD returns the mean and the standard deviation of values; NaN without any.
func MeanSD(values []float64) (mean, sd float64) {
	n := float64(len(values))
	for _, v := range values {
		mean += v / n
	}
	for _, v := range values {
		sd += (v - mean) * (v - mean) / n
	}
	if n == 0 {
		return math.NaN(), math.NaN()
	}
	return mean, math.Sqrt(sd)
}
