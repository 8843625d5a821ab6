package evaluate

import (
	"fmt"

	"github.com/weirhq/weir/experts/gate"
)

// Recommended is hub-cloud's setting for all layers: tokens whose top two
// experts carry less than two fifths of the score mass choose among the best
// four, down to seven tenths of the second's score. Fit is where it was found.
var Recommended = gate.Params{EpsHigh: 0.4, Tau: 0.7, Pool: 4}

// same is a setting that all layers share.
func same(group, name string, eps, tau float32) Setting {
	return Setting{group, name, []gate.Params{{EpsHigh: eps, Tau: tau, Pool: Recommended.Pool}}}
}

// Fit is the grid over which Recommended was chosen, on calibration prompts.
func Fit() []Setting {
	out := []Setting{{Name: "off"}}
	for _, eps := range []float32{0.6, 0.5, 0.4, 0.3} {
		for _, tau := range []float32{0.9, 0.7} {
			out = append(out, same(fmt.Sprintf("below mass %.1f, tau", eps), fmt.Sprintf("%.1f", tau), eps, tau))
		}
	}
	return out
}

// Settings are the rows of the table on held-out prompts: off, the recommended
// setting, its neighbours, and budgets of score mass calibrated per layer, for
// flat tokens and for nearly all.
func Settings(cacheDir string) ([]Setting, error) {
	scores, err := Record(cacheDir, 20)
	if err != nil {
		return nil, err
	}
	out := []Setting{{Name: "off"}, {"tau", "0.7, recommended", []gate.Params{Recommended}}}
	for _, tau := range []float32{0.9, 0.5, 0.3} {
		out = append(out, same("tau", fmt.Sprintf("%.1f", tau), Recommended.EpsHigh, tau))
	}
	for _, eps := range []float32{0.5, 0.6} {
		out = append(out, same("tau 0.7, below mass", fmt.Sprintf("%.1f", eps), eps, Recommended.Tau))
	}
	for _, b := range []struct {
		eps    float32
		budget float64
	}{{Recommended.EpsHigh, 0.005}, {Recommended.EpsHigh, 0.02}, {0.9, 0.001}, {0.9, 0.01}} {
		g, err := Calibrate(scores, gate.Params{EpsHigh: b.eps, Pool: Recommended.Pool}, b.budget)
		if err != nil {
			return nil, err
		}
		out = append(out, Setting{fmt.Sprintf("below mass %.1f, budget", b.eps), fmt.Sprintf("%.1f %%", 100*b.budget), g})
	}
	return out, nil
}
