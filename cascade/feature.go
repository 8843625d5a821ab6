package cascade

import (
	"fmt"
	"math"
)

// Feature names one number read from Signals. Bigger means more confident,
// except for FeatureTokens.
type Feature string

// The features that a calibration may use. Those of probabilities are mapped
// by Phi to log-odds.
const (
	FeatureProduct Feature = "product" // Phi of the summed log-probability
	FeatureMin     Feature = "min"     // Phi of the smallest log-probability
	FeatureMean    Feature = "mean"    // Phi of the mean log-probability
	FeatureFirst   Feature = "first"   // Phi of the first token's log-probability
	FeatureQ10     Feature = "q10"     // 10 % quantile of Phi over the tokens
	FeatureTokens  Feature = "tokens"  // ln of the number of tokens
	FeatureMargin  Feature = "margin"  // smallest margin, clipped to 16
	FeatureLow     Feature = "low"     // minus ln(1 + tokens with p < 1/2)
)

// Valid reports whether f is a known feature.
func (f Feature) Valid() bool {
	_, ok := f.Value(&Signals{Tokens: 1, Margins: 1})
	return ok
}

// ParseFeature accepts exactly the names above.
func ParseFeature(s string) (Feature, error) {
	if f := Feature(s); f.Valid() {
		return f, nil
	}
	return "", fmt.Errorf("unknown feature %q: use product, min, mean, first, q10, tokens, margin or low", s)
}

// Value reads the feature. ok is false when the signals do not hold it.
func (f Feature) Value(s *Signals) (v float64, ok bool) {
	if s.Tokens == 0 {
		return 0, false
	}
	switch f {
	case FeatureProduct:
		return Phi(s.SumLogProb), true
	case FeatureMin:
		return Phi(s.MinLogProb), true
	case FeatureMean:
		return Phi(s.MeanLogProb), true
	case FeatureFirst:
		return Phi(s.FirstLogProb), true
	case FeatureQ10:
		return s.PhiQuantile(.1), true
	case FeatureTokens:
		return math.Log(float64(s.Tokens)), true
	case FeatureMargin:
		return math.Min(s.MinMargin, 16), s.Margins > 0
	case FeatureLow:
		return -math.Log1p(float64(s.Low)), true
	}
	return 0, false
}
