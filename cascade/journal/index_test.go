package journal

import (
	"fmt"
	"testing"

	"github.com/google/uuid"
)

// BenchmarkFind finds decisions in a full log of a node.
func BenchmarkFind(b *testing.B) {
	dir := b.TempDir()
	j, err := Open(dir, Options{MaxBytes: 16 << 20, SyncEvery: 1 << 30})
	if err != nil {
		b.Fatal(err)
	}
	defer j.Close()
	var asked []string
	for j.old.f == nil || j.size < 15<<20 {
		asked = append(asked, uuid.NewString())
		r := decision(asked[len(asked)-1])
		r.Policy, r.Model, r.Key, r.Spans = "standard@3", fmt.Sprintf("%064x", 1), "abcd", &Spans{Answer: 40}
		if _, err := j.Append(r); err != nil {
			b.Fatal(err)
		}
	}
	for name, find := range map[string]func(string) (Found, bool, error){"place": j.Find, "scan": func(id string) (Found, bool, error) { return Find(dir, id) }} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if _, ok, err := find(asked[len(asked)-1-i%len(asked)]); !ok || err != nil {
					b.Fatal(ok, err)
				}
			}
			b.ReportMetric(float64(len(asked)), "requests")
		})
	}
}
