package experts

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The LASER-style combination: flexible load goes to routing, rigid load to
// replicas. For the same imbalance it needs fewer transfers than placement
// alone, and the imbalance that results is measured by routing.
func TestCombinedNeedsFewerMoves(t *testing.T) {
	c, err := Combine(5)
	if err != nil {
		t.Fatal(err)
	}
	alone, together := 0, 0
	for i, x := range c.Topics {
		if x.Routed > combinedTarget {
			t.Errorf("topic %d: routed imbalance %.4f, target %v", i, x.Routed, combinedTarget)
		}
		if x.Together > x.Alone || x.Lost > combinedBudget {
			t.Errorf("topic %d: %+v", i, x)
		}
		alone, together = alone+x.Alone, together+x.Together
	}
	if together*100 > alone*85 {
		t.Errorf("routing saves too little: %d of %d transfers left", together, alone)
	}
	for k := range c.Alone {
		if c.Together[k] > c.Alone[k] {
			t.Errorf("%d transfers: %.4f with routing, %.4f alone", k, c.Together[k], c.Alone[k])
		}
	}
}

func TestCombinedCommand(t *testing.T) {
	svg := filepath.Join(t.TempDir(), "new", "combined.svg")
	code, out, errs := weir(t, "combined", "--topics", "1", "--svg", svg)
	if code != 0 || !strings.Contains(out, "topic 0: imbalance") || !strings.Contains(out, "transfers   alone  with routing") {
		t.Errorf("exit %d, %s\n%s", code, errs, out)
	}
	if b, err := os.ReadFile(svg); err != nil || !strings.Contains(string(b), "placement alone") {
		t.Errorf("picture: %v", err)
	}
	if code, _, _ := weir(t, "combined", "--topics", "0"); code != 2 {
		t.Errorf("no topics: exit %d", code)
	}
}
