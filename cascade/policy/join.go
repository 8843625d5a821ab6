package policy

import (
	"bytes"
	"fmt"

	"github.com/weirhq/weir/cascade"
)

// Join reads the settings of a stored policy: its spec (JSON as Parse takes it,
// or empty), and the mode and threshold that stand beside the spec. It refuses,
// with ErrSettings, what Parse refuses and a mode or threshold said twice.
func Join(spec []byte, mode string, threshold *float64) (Settings, error) {
	var s Settings
	if len(bytes.TrimSpace(spec)) > 0 {
		var err error
		if s, err = Parse(spec); err != nil {
			return Settings{}, err
		}
	}
	if mode != "" {
		if s.Mode != "" && string(s.Mode) != mode {
			return Settings{}, fmt.Errorf("%w: mode is %s beside the spec and %s in it: keep one", ErrSettings, mode, s.Mode)
		}
		s.Mode = cascade.Mode(mode)
	}
	if threshold != nil {
		if s.Threshold != nil {
			return Settings{}, fmt.Errorf("%w: the spec and the member beside it both set the threshold: keep one", ErrSettings)
		}
		s.Threshold = threshold
	}
	if err := s.Validate(); err != nil {
		return Settings{}, err
	}
	return s, nil
}
