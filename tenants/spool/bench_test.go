package spool

import (
	"context"
	"testing"

	"github.com/weirhq/weir/tenants"
)

func BenchmarkAdmitSettle(b *testing.B) {
	s := open(b, Options{Dir: b.TempDir()})
	rec := record(1)
	var ticket Ticket
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		if err := s.Admit(rec, &ticket); err != nil {
			b.Fatal(err)
		}
		if err := s.Settle(&ticket, rec); err != nil {
			b.Fatal(err)
		}
		if n%100_000 == 99_999 {
			b.StopTimer()
			drainAll(b, s)
			b.StartTimer()
		}
	}
}

func BenchmarkDrain(b *testing.B) {
	s := open(b, Options{Dir: b.TempDir()})
	b.ReportAllocs()
	waiting := 0
	for b.Loop() {
		if waiting == 0 {
			b.StopTimer()
			for range 50_000 {
				if err := s.Append(record(1)); err != nil {
					b.Fatal(err)
				}
			}
			waiting = 50_000
			b.StartTimer()
		}
		n, err := s.Drain(context.Background(), 500, 1, func(context.Context, []tenants.UsageRecord) error { return nil })
		if err != nil {
			b.Fatal(err)
		}
		waiting -= n
	}
	b.ReportMetric(float64(b.N*500)/b.Elapsed().Seconds(), "rows/s")
}
