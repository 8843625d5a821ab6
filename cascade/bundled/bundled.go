// Package bundled holds the calibrations of the models that Weir ships.
package bundled

import (
	_ "embed"

	"github.com/weirhq/weir/cascade"
)

//go:embed hub-edge.json
var hubEdge []byte

// HubEdge returns the calibration of the bundled edge model: fitted on the
// calibration prompts of engine/models, never on its test prompts. Its
// fingerprint is the SHA-256 of the model file.
func HubEdge() (cascade.Calibration, error) { return cascade.ParseCalibration(hubEdge) }
