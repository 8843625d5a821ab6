package route

// Copy is what is known of how long KV takes from one instance to another.
type Copy struct {
	// Tokens and Ms are what recent copies have had and taken on average.
	Tokens, Ms float64
	// Least and Most bound how many milliseconds a token more takes.
	Least, Most float64
}

// Predict is the shortest time, in milliseconds, for n tokens that agrees with
// what was measured. Short copies do not tell how long the fixed part of each is:
// taken for tokens' time it would forbid all long ones, and nobody would ever
// measure one. Hope is corrected by the first copy that it brings.
func (c Copy) Predict(n int) float64 {
	if more := float64(n) - c.Tokens; more > 0 {
		return c.Ms + more*c.Least
	}
	return c.Ms - (c.Tokens-float64(n))*c.Most
}
