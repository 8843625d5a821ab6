package cost

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
)

// Read reads a model that Write has written, and checks it.
func Read(path string) (*Model, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("cost model: %w", err)
	}
	var m Model
	err = json.Unmarshal(data, &m)
	if err == nil {
		err = m.Check()
	}
	if err != nil {
		return nil, fmt.Errorf("cost model %s: %w: make it with 'weir worker bench'", path, err)
	}
	return &m, nil
}

// Bounds of a model: two pieces are fitted, and no step of any machine takes a
// quarter of an hour for one token.
const (
	maxPieces      = 64
	maxMs          = 1e6
	maxFingerprint = 1536 // bytes
)

// Check refuses models that give no answer for some step, or one that no machine
// gives: decisions about whole pools are made with them.
func (m *Model) Check() error {
	if len(m.Pieces) == 0 || len(m.Pieces) > maxPieces {
		return fmt.Errorf("it has %d pieces, want 1 to %d", len(m.Pieces), maxPieces)
	}
	if len(m.Fingerprint) > maxFingerprint || m.Threads < 0 || !sane(m.HeldOut) || !sane(m.Noise) {
		return errors.New("its fingerprint, threads, held_out or noise cannot be")
	}
	last := 0
	for i, p := range m.Pieces {
		end := i == len(m.Pieces)-1
		if end != (p.UpTo == 0) || !end && p.UpTo <= last {
			return errors.New("its pieces are not in order with an open last one")
		}
		last = p.UpTo
		for _, x := range []float64{p.Fixed, p.PerDecode, p.PerPrefill, p.PerContext, p.PerPair, p.Residual, float64(p.Samples)} {
			if !sane(x) {
				return fmt.Errorf("its piece %d has the number %g: want none below 0 or above %g", i+1, x, maxMs)
			}
		}
	}
	return nil
}

// sane is false for NaN too.
func sane(x float64) bool { return x >= 0 && x <= maxMs }

// CheckFor refuses a model that was measured with other weights or another kind
// of runner than fingerprint says: its times are of another model. Where either
// is unknown it is taken.
func (m *Model) CheckFor(fingerprint string) error {
	weights, kind := origin(m.Fingerprint)
	hasWeights, hasKind := origin(fingerprint)
	if differ(weights, hasWeights) || differ(kind, hasKind) {
		return fmt.Errorf("cost model was measured with %.100q, this worker has %.100q: measure it with 'weir worker bench'", m.Fingerprint, fingerprint)
	}
	return nil
}

// Dated reports whether the model was measured with another version of the runner
// or another KV format than fingerprint says: the times of the same model have
// changed little or much.
func (m *Model) Dated(fingerprint string) bool { return differ(m.Fingerprint, fingerprint) }

// origin gives the weights and the runner's name without its version, of
// "weights:name/version:kv".
func origin(fingerprint string) (weights, kind string) {
	weights, rest, _ := strings.Cut(fingerprint, ":")
	runner, _, _ := strings.Cut(rest, ":")
	kind, _, _ = strings.Cut(runner, "/")
	return weights, kind
}

// differ is false where either is unknown.
func differ(a, b string) bool { return a != "" && b != "" && a != b }

// Write writes m as indented JSON.
func (m *Model) Write(path string) error {
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}
