package edgebench

import (
	"context"
	"testing"
)

// Both modes answer at the edge, whole and streamed: what is compared is the
// same.
func TestModesAnswerAlike(t *testing.T) {
	n, err := newNode(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, stream := range []bool{false, true} {
		for _, mode := range []string{"auto", "edge-only"} {
			if took, err := n.ask(body(stream), mode); err != nil || took <= 0 {
				t.Errorf("stream %v, %s: %v, %v", stream, mode, took, err)
			}
		}
	}
}
