package plan

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// sharedLoads reads a load file from the data folder beside the repository, or
// skips the test. The files may not be copied into the repository.
func sharedLoads(t testing.TB, name string) [][]float64 {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		raw, err := os.ReadFile(filepath.Join(dir, "shared", "data", "experts", name))
		if err != nil {
			continue
		}
		var v struct {
			Logical [][]float64 `json:"logical_count"`
			Counts  [][]float64 `json:"counts"`
		}
		if err := json.Unmarshal(raw, &v); err != nil {
			t.Fatal(err)
		}
		return append(v.Logical, v.Counts...)
	}
	t.Skipf("no shared/data/experts/%s beside the repository", name)
	return nil
}

// moe drops dense layers.
func moe(loads [][]float64) [][]float64 {
	var out [][]float64
	for _, row := range loads {
		for _, x := range row {
			if x > 0 {
				out = append(out, row)
				break
			}
		}
	}
	return out
}
