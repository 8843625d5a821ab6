package batch

import "time"

const (
	// LeastChunk is how many prompt tokens a step takes however late the decodes
	// are: prompts must not starve.
	LeastChunk = 32
	// safety is by how much a step may take longer than predicted (Niyama).
	safety = 1.2
)

// Slack is how long the next step may take for a decoding sequence: until its
// next token is late by its wanted time per output token, counted from its first.
// A sequence that is ahead of that does not use up all of it at once: nobody sees
// a gap of more than twice the wanted time (Kairos bounds the credit alike).
func Slack(now, first time.Duration, made int, tpot time.Duration) time.Duration {
	return min(first+time.Duration(made)*tpot-now, 2*tpot)
}

// Chunk is how many prompt tokens may go into a step beside decodes: the largest
// of LeastChunk, twice that and so on up to most whose predicted time, with a
// margin, is within the least slack (Niyama, ASPLOS'26). predict gives the time
// of the step with so many prompt tokens; it must not fall with their number.
func Chunk(slack time.Duration, most int, predict func(tokens int) time.Duration) int {
	best := min(LeastChunk, most)
	for n := best; n < most; {
		n = min(2*n, most)
		if float64(predict(n))*safety > float64(slack) {
			break
		}
		best = n
	}
	return best
}
