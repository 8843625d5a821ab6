package cloud

import "testing"

// TestMovesConfig: streams move for all causes unless the operator says otherwise.
func TestMovesConfig(t *testing.T) {
	c := testConfig("http://h")
	for value, moves := range map[string]bool{movesAuto: true, movesDrain: false} {
		c.Moves = value
		if err := c.Validate(); err != nil {
			t.Error(err)
		}
		if o := c.pool(nil, nil, nil); (o.Moves != nil) != moves {
			t.Errorf("moves %s: %+v", value, o.Moves)
		}
	}
	c.Moves = "always"
	if c.Validate() == nil {
		t.Error("an unknown value was taken")
	}
}
