package learn

import (
	"math"

	"github.com/weirhq/weir/cascade/measure"
)

// Grade says what a cell's signal may be used for.
type Grade string

// The grades. A weak signal may only rank within a budget; an unusable one
// leaves the cell to its prior: always edge or always cloud.
const (
	GradeUsable   Grade = "usable"
	GradeWeak     Grade = "weak"
	GradeUnusable Grade = "unusable"
	GradeUnknown  Grade = "unknown" // too few labels of both kinds
)

// Bounds of the lower confidence limit of the AUROC of "escalation helps".
const (
	usableFrom = .60
	weakFrom   = .53
)

// GradeOf grades a lower limit of the benefit AUROC.
func GradeOf(lower float64) Grade {
	switch {
	case math.IsNaN(lower):
		return GradeUnknown
	case lower >= usableFrom:
		return GradeUsable
	case lower >= weakFrom:
		return GradeWeak
	}
	return GradeUnusable
}

// Viability tests whether ranking by gain finds the items on which escalation
// helps (cloud right and edge wrong). w are the labels' 1/propensity, nil for
// all seen. It returns the grade, the AUROC and its lower 95 % limit (one-sided,
// DeLong). With fewer than 20 items of either kind the grade is unknown.
func Viability(gain []float64, helps []bool, w []float64) (g Grade, auroc, lower float64) {
	n := 0
	for _, h := range helps {
		if h {
			n++
		}
	}
	if n < 20 || len(helps)-n < 20 {
		return GradeUnknown, math.NaN(), math.NaN()
	}
	a, se := measure.WeightedAUROC(gain, helps, w)
	lower = a - 1.645*se
	return GradeOf(lower), a, lower
}
