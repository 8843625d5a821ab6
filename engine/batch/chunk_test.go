package batch

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

const ms = time.Millisecond

// perToken is a machine with a fixed time and one per prompt token.
func perToken(fixed, each time.Duration) func(int) time.Duration {
	return func(n int) time.Duration { return fixed + time.Duration(n)*each }
}

func TestChunk(t *testing.T) {
	for name, tt := range map[string]struct {
		slack time.Duration
		most  int
		fixed time.Duration
		want  int
	}{
		"plenty":               {time.Second, 512, 0, 512},
		"half":                 {100 * ms, 512, 0, 64},
		"just":                 {153600 * time.Microsecond, 512, 0, 128},
		"not quite":            {153599 * time.Microsecond, 512, 0, 64},
		"decodes alone exceed": {100 * ms, 512, 90 * ms, LeastChunk},
		"late":                 {-time.Second, 512, 0, LeastChunk},
		"most is less":         {time.Second, 20, 0, 20},
		"most is no power":     {time.Second, 300, 0, 300},
	} {
		if got := Chunk(tt.slack, tt.most, perToken(tt.fixed, ms)); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
}

// TestChunkKeepsTheSlack: beyond the least chunk the slack is kept, with its
// margin; more slack never gives less.
func TestChunkKeepsTheSlack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		duration := func(name string, most time.Duration) time.Duration {
			return time.Duration(rapid.Int64Range(0, int64(most)).Draw(t, name))
		}
		most := rapid.IntRange(1, 2000).Draw(t, "most")
		predict := perToken(duration("fixed", 100*ms), duration("each", ms))
		slack, more := duration("slack", time.Second), duration("more", time.Second)
		n := Chunk(slack, most, predict)
		if n < 1 || n > most || n < min(LeastChunk, most) {
			t.Fatalf("%d of %d", n, most)
		}
		if n > LeastChunk && float64(predict(n))*safety > float64(slack) {
			t.Fatalf("%d tokens take %v of %v", n, predict(n), slack)
		}
		if m := Chunk(slack+more, most, predict); m < n {
			t.Fatalf("%d with a slack of %v, %d with more", n, slack, m)
		}
	})
}

func TestSlack(t *testing.T) {
	for name, tt := range map[string]struct {
		now  time.Duration
		made int
		want time.Duration
	}{
		"just begun":  {10 * ms, 1, 50 * ms},
		"on its way":  {30 * ms, 1, 30 * ms},
		"late":        {200 * ms, 2, -90 * ms},
		"far ahead":   {20 * ms, 100, 100 * ms},
		"to the dot":  {60 * ms, 1, 0},
		"still ahead": {60 * ms, 2, 50 * ms},
	} {
		if got := Slack(tt.now, 10*ms, tt.made, 50*ms); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}
