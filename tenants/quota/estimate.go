package quota

import "math"

// Learned remembers how large some positive quantity was, in buckets an eighth
// of an octave wide, and forgets slowly: when 8,192 were observed all
// counts are halved. The zero value has seen nothing.
type Learned struct {
	counts [learnedBuckets]uint32
	total  uint32
}

const (
	learnedBuckets = 256
	learnedLowest  = -8 // log2 of the smallest value told apart
	learnedHalving = 8192
)

// Observe takes in one value.
func (l *Learned) Observe(v float64) {
	l.counts[learnedBucket(v)]++
	l.total++
	if l.total < learnedHalving {
		return
	}
	l.total = 0
	for i := range l.counts {
		l.counts[i] /= 2
		l.total += l.counts[i]
	}
}

func learnedBucket(v float64) int {
	if !(v > 0) {
		return 0
	}
	return int(min(max(math.Ceil((math.Log2(v)-learnedLowest)*8), 0), learnedBuckets-1))
}

// Quantile returns a value that a part q of those observed did not exceed, at
// most 9 % too high; ok is false before 20 were observed.
func (l *Learned) Quantile(q float64) (v float64, ok bool) {
	if l.total < 20 {
		return 0, false
	}
	want := uint32(math.Ceil(q * float64(l.total)))
	var seen uint32
	for i, n := range l.counts {
		if seen += n; seen >= want {
			return math.Exp2(float64(i)/8 + learnedLowest), true
		}
	}
	return math.Exp2(float64(learnedBuckets-1)/8 + learnedLowest), true
}

// Estimator guesses what requests to one model will take, from the size of the
// prompt, because a gateway has no tokenizer. It is not safe for concurrent
// use.
type Estimator struct {
	tokensPerByte Learned
	output        Learned
}

// TemplateTokens is room for what a chat template adds to a prompt.
const TemplateTokens = 64

// Observe takes in a finished request.
func (e *Estimator) Observe(promptBytes, inputTokens, outputTokens int64) {
	if promptBytes > 0 && inputTokens > 0 {
		e.tokensPerByte.Observe(float64(inputTokens) / float64(promptBytes))
	}
	if outputTokens > 0 {
		e.output.Observe(float64(outputTokens))
	}
}

// Bound returns the most tokens that a request can take: no tokenizer makes
// more than one token of a byte, and no answer is longer than maxOutput.
func (e *Estimator) Bound(promptBytes, maxOutput int64) (input, output int64) {
	return promptBytes + TemplateTokens, maxOutput
}

// Likely returns what 99 % of prompts of that size and 95 % of answers do not
// exceed, and never more than Bound; before enough requests were seen it is
// Bound.
func (e *Estimator) Likely(promptBytes, maxOutput int64) (input, output int64) {
	input, output = e.Bound(promptBytes, maxOutput)
	if ratio, ok := e.tokensPerByte.Quantile(0.99); ok {
		input = min(input, int64(math.Ceil(ratio*float64(promptBytes)))+1)
	}
	if n, ok := e.output.Quantile(0.95); ok {
		output = min(output, int64(math.Ceil(n)))
	}
	return input, output
}
