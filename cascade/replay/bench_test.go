package replay

import (
	"context"
	"io"
	"testing"

	"github.com/weirhq/weir/internal/bench"
)

// The suite names its bars and allocates nothing per decision; whether times
// keep their bounds is for "weir bench" to say.
func TestBenchSuite(t *testing.T) {
	bars, err := BenchSuite().Run(context.Background(), bench.Env{Out: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bench.Bar{}
	for _, b := range bars {
		names[b.Name] = b
	}
	for _, name := range []string{"cascade.posthoc", "cascade.token", "cascade.replay"} {
		if !(names[name].Measured > 0) {
			t.Errorf("%s is %v", name, names[name])
		}
	}
	if b := names["cascade.posthoc.allocs"]; !b.OK() {
		t.Errorf("%s", b)
	}
}
