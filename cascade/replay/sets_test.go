package replay

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Each set has the rows of its name, the pool those of all, parted by the split
// where the data have one.
func TestSetsHaveTheirRows(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		d := &Data{Pool: rapid.SampledFrom([]string{"pooled", ""}).Draw(r, "pool")}
		for range rapid.IntRange(1, 30).Draw(r, "rows") {
			d.Records = append(d.Records, Record{Set: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(r, "set"),
				Split: rapid.SampledFrom([]Split{SplitNone, SplitTrain, SplitTest}).Draw(r, "split")})
		}
		names, all := sets(d, 1)
		if !slices.Equal(names, d.Sets()) {
			r.Fatalf("%v, want %v", names, d.Sets())
		}
		for i, s := range all {
			var rows, train, test []int
			for k, rec := range d.Records {
				if rec.Set != names[i] && names[i] != d.Pool {
					continue
				}
				if at := rec.Split; !d.HasSplit() || at == SplitTest {
					test = append(test, len(rows))
				} else if at == SplitTrain {
					train = append(train, len(rows))
				}
				rows = append(rows, k)
			}
			if !slices.Equal(s.rows, rows) || !slices.Equal(s.train, train) || !slices.Equal(s.test, test) {
				r.Fatalf("set %q has rows %v, train %v, test %v; want %v, %v, %v", names[i], s.rows, s.train, s.test, rows, train, test)
			}
		}
	})
}

// BenchmarkManyTasks gathers the rows of as many tasks as there are rows.
func BenchmarkManyTasks(b *testing.B) {
	d := &Data{Pool: "pooled", Records: make([]Record, 20_000)}
	for i := range d.Records {
		d.Records[i].Set = fmt.Sprint(i)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, all := sets(d, 1); len(all) != len(d.Records)+1 {
			b.Fatal(len(all))
		}
	}
}
