package cascade

import "sort"

// Point is one point of a Curve: a probability and what it is read as.
type Point struct {
	X float64 `json:"x"`
	Y float64 `json:"y"`
}

// Curve is a rising function on [0, 1], linear between its points and constant
// outside them. Without points it is the identity. It is not changed once made.
type Curve []Point

// At reads the curve at p. It allocates nothing.
func (c Curve) At(p float64) float64 {
	if len(c) == 0 {
		return p
	}
	i := sort.Search(len(c), func(i int) bool { return c[i].X >= p })
	switch i {
	case 0:
		return c[0].Y
	case len(c):
		return c[i-1].Y
	}
	a, b := c[i-1], c[i]
	return a.Y + (p-a.X)/(b.X-a.X)*(b.Y-a.Y)
}

func (c Curve) valid() bool {
	for i, p := range c {
		if !unit(p.X) || !unit(p.Y) || i > 0 && (p.X <= c[i-1].X || p.Y < c[i-1].Y) {
			return false
		}
	}
	return true
}
