package learn

// Quality is the Beta posterior of a model's probability of being right in one
// cell. Labels must be weighted by 1/propensity where only escalated items are
// seen: those are the hard ones.
type Quality struct {
	Right  float64 `json:"right"`  // weighted sum of labels
	Weight float64 `json:"weight"` // weighted number of labels
}

// qualityPrior is the strength of the prior in labels.
const qualityPrior = 20

// Observe adds a label y in [0, 1] of weight w. Old labels fade, so that a new
// model version shows after some 2,000 labels.
func (q *Quality) Observe(y, w float64) {
	const fade = 1 - 1./4000
	q.Right = fade*q.Right + w*y
	q.Weight = fade*q.Weight + w
}

// Mean is the posterior mean around a prior mean, the model's global one.
func (q Quality) Mean(prior float64) float64 {
	return (qualityPrior*prior + q.Right) / (qualityPrior + q.Weight)
}
