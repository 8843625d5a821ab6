package profile

import (
	"testing"
	"time"

	"github.com/weirhq/weir/engine/worker/cost"
	"github.com/weirhq/weir/engine/worker/runnertest"
)

func TestMeasure(t *testing.T) {
	for _, o := range []runnertest.Options{{}, {MaxSeqs: 2, Context: 100}, {MaxSeqs: 1, Context: 40}, {MaxSeqs: 8, Context: 400, KVTokens: 500, MaxBatch: 16}} {
		r := runnertest.New(o)
		samples, err := Measure(t.Context(), r, time.Minute)
		if err != nil || r.Tokens() != 0 {
			t.Fatalf("%+v: %v, %d tokens left", o, err, r.Tokens())
		}
		if o.MaxSeqs == 1 {
			continue // no room for decodes beside a prompt
		}
		decodes, mixed := 0, 0
		for _, s := range samples {
			if s.MS <= 0 || s.Tokens() < 1 || s.Decodes > 0 && s.Context < s.Decodes {
				t.Errorf("%+v", s)
			}
			if s.Decodes > 0 && s.Prefill == 0 {
				decodes++
			}
			if s.Decodes > 0 && s.Prefill > 0 {
				mixed++
			}
		}
		if decodes == 0 || mixed == 0 {
			t.Errorf("%+v: %d decode steps, %d mixed of %d", o, decodes, mixed, len(samples))
		}
		if _, err := cost.Fit(samples); err != nil {
			t.Errorf("%+v: %d samples: %v", o, len(samples), err)
		}
	}
}

func TestMeasureStops(t *testing.T) {
	began := time.Now()
	samples, err := Measure(t.Context(), runnertest.New(runnertest.Options{Context: 100000, KVTokens: 800000}), time.Nanosecond)
	if err != nil || time.Since(began) > time.Minute {
		t.Errorf("%d samples, %v after %v", len(samples), err, time.Since(began))
	}
}
