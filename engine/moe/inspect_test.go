package moe_test

import (
	"errors"
	"testing"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/models"
	"github.com/weirhq/weir/engine/moe"
)

func TestInspect(t *testing.T) {
	for name, want := range map[string]int{"hub-edge": 0, "hub-cloud": 16} {
		path, err := models.Path(name, t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		if got, err := moe.Inspect(path); got != want || err != nil {
			t.Errorf("%s has %d experts, %v; want %d", name, got, err, want)
		}
	}
	if _, err := moe.Inspect(t.TempDir() + "/none.gguf"); !errors.Is(err, engine.ErrModel) {
		t.Errorf("a missing file gives %v", err)
	}
}
