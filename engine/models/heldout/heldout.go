// Package heldout holds the 1,000 examples that score the bundled models and
// the cascade over them. Nothing that fits or decides may import it; a test
// checks that only evaluation does.
package heldout

import (
	_ "embed"

	"github.com/weirhq/weir/engine/models"
)

//go:embed test.jsonl
var test []byte

// Test returns the held-out examples, ordered by task.
func Test() ([]models.Example, error) { return models.ParseExamples(test) }
