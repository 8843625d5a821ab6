package pages_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/weirhq/weir/engine/moe/pages"
	"pgregory.net/rapid"
)

var shape = pages.Shape{Layers: 2, Heads: 2, Dim: 8, Seqs: 4, Context: 150, Tokens: 600}

// token is what a token's key and value are made from in these tests.
func token(id, layer int) (key, value []float32) {
	rng := rand.New(rand.NewPCG(uint64(id), uint64(layer)))
	for range shape.Heads * shape.Dim {
		key, value = append(key, float32(rng.NormFloat64())), append(value, float32(rng.NormFloat64()))
	}
	return key, value
}

func write(c *pages.Cache, seq int, ids []int) {
	from := c.Held(seq)
	c.Append(seq, len(ids))
	for i, id := range ids {
		for l := range shape.Layers {
			k, v := token(id, l)
			c.Put(seq, l, from+i, k, v)
		}
	}
}

// TestCacheAgainstLists does anything to a cache and to plain lists.
func TestCacheAgainstLists(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, lists, next := pages.New(shape), make([][]int, shape.Seqs), 0
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			s, o := rapid.IntRange(0, shape.Seqs-1).Draw(t, "seq"), rapid.IntRange(0, shape.Seqs-1).Draw(t, "other")
			switch rapid.IntRange(0, 3).Draw(t, "op") {
			case 0:
				n := rapid.IntRange(0, shape.Context).Draw(t, "n")
				c.Forget(s, n)
				lists[s] = lists[s][:min(n, len(lists[s]))]
			case 1:
				if len(lists[s]) == 0 && s != o {
					n := rapid.IntRange(0, len(lists[o])).Draw(t, "n")
					c.Copy(s, o, n)
					lists[s] = slices.Clone(lists[o][:n])
				}
			default:
				n := rapid.IntRange(1, 70).Draw(t, "n")
				if len(lists[s])+n > shape.Context {
					continue
				}
				ids := make([]int, n)
				for i := range ids {
					next++
					ids[i] = next
				}
				want := c.Used() + c.Need(s, n)
				write(c, s, ids)
				lists[s] = append(lists[s], ids...)
				if c.Used() != want {
					t.Fatalf("used %d after appending %d, foretold %d", c.Used(), n, want)
				}
			}
			compare(t, c, lists)
		}
		for s := range shape.Seqs {
			c.Forget(s, 0)
		}
		if c.Used() != 0 {
			t.Fatalf("used %d when all is forgotten", c.Used())
		}
	})
}

func compare(t *rapid.T, c *pages.Cache, lists [][]int) {
	sum := 0
	key, value := make([]float32, shape.Heads*shape.Dim), make([]float32, shape.Heads*shape.Dim)
	for s, ids := range lists {
		sum += len(ids)
		if c.Held(s) != len(ids) {
			t.Fatalf("sequence %d holds %d, want %d", s, c.Held(s), len(ids))
		}
		for i, id := range ids {
			c.Get(key, value, s, i%shape.Layers, i)
			k, v := token(id, i%shape.Layers)
			if !slices.Equal(k, key) || !slices.Equal(v, value) {
				t.Fatalf("sequence %d, position %d is not token %d", s, i, id)
			}
		}
	}
	// The tail of a page counts until its last user drops it or writes there.
	if c.Used() > sum+31*shape.Seqs {
		t.Fatalf("used %d for %d tokens", c.Used(), sum)
	}
}

func TestCopyShares(t *testing.T) {
	c := pages.New(shape)
	write(c, 0, make([]int, 100))
	c.Copy(1, 0, 70)
	if c.Used() != 100 || c.Shared(1) != 3 {
		t.Errorf("used %d, %d pages shared; want 100 and 3", c.Used(), c.Shared(1))
	}
	before := c.Bytes()
	write(c, 1, []int{1})
	if c.Used() != 107 || c.Shared(1) != 2 || c.Bytes() == before {
		t.Errorf("used %d, %d pages shared after a write; want 107 and 2", c.Used(), c.Shared(1))
	}
}

// TestAttend compares with softmax in double precision.
func TestAttend(t *testing.T) {
	c := pages.New(shape)
	ids := make([]int, 150)
	for i := range ids {
		ids[i] = i
	}
	write(c, 2, ids)
	query, _ := token(-1, 0)
	dst, scratch := make([]float32, shape.Dim), c.Weights()
	for _, n := range []int{1, 7, 8, 31, 32, 33, 64, 150} {
		for head := range shape.Heads {
			q := query[head*shape.Dim : (head+1)*shape.Dim]
			c.Attend(dst, q, 2, 1, head, n, 0.5, scratch)
			want := attend(q, head, n)
			for i := range dst {
				if math.Abs(float64(dst[i])-want[i]) > 1e-5 {
					t.Fatalf("%d tokens, head %d: value %d is %v, want %v", n, head, i, dst[i], want[i])
				}
			}
		}
	}
}

func attend(q []float32, head, n int) []float64 {
	out, sum := make([]float64, shape.Dim), 0.0
	for id := range n {
		k, v := token(id, 1)
		score := 0.0
		for i := range q {
			score += float64(q[i]) * float64(k[head*shape.Dim+i])
		}
		w := math.Exp(0.5 * score)
		sum += w
		for i := range out {
			out[i] += w * float64(v[head*shape.Dim+i])
		}
	}
	for i := range out {
		out[i] /= sum
	}
	return out
}
