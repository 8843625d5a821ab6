package policy

import (
	"errors"
	"testing"

	"github.com/weirhq/weir/cascade"
)

func TestJoin(t *testing.T) {
	half, three := .5, 3.
	for _, tt := range []struct {
		name, spec, mode string
		threshold        *float64
		ok               bool
	}{
		{"nothing", "", "", nil, true},
		{"beside only", "", "prefer-edge", &half, true},
		{"spec only", `{"rate":0.2}`, "", nil, true},
		{"mode beside a rate", `{"rate":0.2}`, "prefer-edge", nil, true},
		{"the same mode twice", `{"mode":"prefer-edge"}`, "prefer-edge", nil, true},
		{"two modes", `{"mode":"prefer-edge"}`, "edge-only", nil, false},
		{"two thresholds", `{"threshold":0.5}`, "", &half, false},
		{"threshold and rate", `{"rate":0.2}`, "", &half, false},
		{"threshold out of range", "", "", &three, false},
		{"unknown mode", "", "sometimes", nil, false},
		{"unknown key", `{"kind":"threshold"}`, "", nil, false},
		{"leak by the mode beside", `{"privacy":"local-only"}`, "cloud-only", nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := Join([]byte(tt.spec), tt.mode, tt.threshold)
			if (err == nil) != tt.ok || (err != nil && !errors.Is(err, ErrSettings)) {
				t.Fatalf("%+v, %v", s, err)
			}
			if tt.ok && (s.Mode != cascade.Mode(tt.mode) || tt.threshold != nil && s.Threshold == nil) {
				t.Errorf("%+v", s)
			}
		})
	}
}
