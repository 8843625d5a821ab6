package experts

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirhq/weir/internal/bench"
)

// The suite runs on recorded data where that lies beside the repository, and
// on made-up loads without. Times are printed, not judged.
func TestBenchSuite(t *testing.T) {
	for _, data := range []string{"", sharedData(t)} {
		var out strings.Builder
		bars, err := BenchSuite().Run(t.Context(), bench.Env{Out: &out, Data: data})
		if err != nil {
			t.Fatal(err)
		}
		if len(bars) < 3 {
			t.Errorf("%d bars with data %q", len(bars), data)
		}
		for _, b := range bars {
			t.Log(b)
			switch {
			case b.Missing != "" && data != "":
				t.Errorf("not measured with data %q: %s", data, b)
			case b.Missing == "" && b.Unit != "ms" && !b.OK():
				t.Errorf("missed: %s", b)
			}
		}
	}
}

// sharedData is the data folder beside the repository, or "".
func sharedData(t *testing.T) string {
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		data := filepath.Join(dir, "shared", "data")
		if _, err := os.Stat(filepath.Join(data, "experts", "deepseek-r1-sglang")); err == nil {
			return data
		}
	}
	return ""
}
