// Package pages is the KV cache of engine/moe: keys and values in pages of 32
// positions that sequences may share. A page is copied before a sequence
// writes where another one reads.
package pages

import (
	"math"
	"slices"

	"github.com/weirhq/weir/engine/moe/kernel"
)

// Shape is the size of a cache.
type Shape struct {
	Layers, Heads, Dim int // Heads of keys and values, Dim values each
	Seqs               int // sequences
	Context            int // most tokens of a sequence
	Tokens             int // most tokens held, over all sequences; shared ones count once
}

// TokenValues is the number of values that a token takes.
func (s Shape) TokenValues() int { return 2 * s.Layers * s.Heads * s.Dim }

// minusInf is the score of a position that is not there.
var minusInf = float32(math.Inf(-1))

// page holds kernel.Page positions of all layers.
type page struct {
	data   []float32 // [layer][key, value][head][Dim*Page]
	refs   int
	filled int // positions that count as held
}

type sequence struct {
	pages []*page
	held  int
}

// Cache is all sequences' keys and values. It belongs to one goroutine, but
// after Append different sequences may be written and read at the same time.
// Pages are made when first needed and then reused.
type Cache struct {
	Shape
	seqs []sequence
	free []*page
	used int
}

// New makes an empty cache.
func New(s Shape) *Cache {
	c := &Cache{Shape: s, seqs: make([]sequence, s.Seqs)}
	for i := range c.seqs {
		c.seqs[i].pages = make([]*page, 0, (s.Context+kernel.Page-1)/kernel.Page)
	}
	return c
}

// Held is the number of tokens of a sequence.
func (c *Cache) Held(seq int) int { return c.seqs[seq].held }

// Used is the number of tokens in the cache. In a page that was shared, what
// only a former user held counts until the page is written or dropped.
func (c *Cache) Used() int { return c.used }

// Need is how many tokens Used will grow by when n tokens are appended to a
// sequence.
func (c *Cache) Need(seq, n int) int {
	s := &c.seqs[seq]
	m := s.held % kernel.Page
	if m == 0 || n == 0 {
		return n
	}
	last := s.pages[len(s.pages)-1]
	if last.refs > 1 {
		return n + m
	}
	return n + m - last.filled
}

// Append makes room for n tokens after the held ones. Their keys and values
// are to be written by Put; they count as held at once. The caller has checked
// that Used+Need is at most Tokens.
func (c *Cache) Append(seq, n int) {
	s := &c.seqs[seq]
	if m := s.held % kernel.Page; m > 0 && n > 0 {
		c.own(s, m)
	}
	for n > 0 {
		if s.held%kernel.Page == 0 {
			s.pages = append(s.pages, c.take())
		}
		last := s.pages[len(s.pages)-1]
		add := min(n, kernel.Page-last.filled)
		last.filled += add
		s.held += add
		c.used += add
		n -= add
	}
}

// own makes the last page the sequence's own, holding m tokens.
func (c *Cache) own(s *sequence, m int) {
	last := s.pages[len(s.pages)-1]
	if last.refs > 1 {
		fresh := c.take()
		copy(fresh.data, last.data)
		fresh.filled = m
		c.used += m
		c.drop(last)
		s.pages[len(s.pages)-1] = fresh
		return
	}
	c.used += m - last.filled
	last.filled = m
}

func (c *Cache) take() *page {
	if n := len(c.free); n > 0 {
		p := c.free[n-1]
		c.free = c.free[:n-1]
		p.refs, p.filled = 1, 0
		return p
	}
	return &page{data: make([]float32, c.TokenValues()*kernel.Page), refs: 1}
}

func (c *Cache) drop(p *page) {
	if p.refs--; p.refs == 0 {
		c.used -= p.filled
		c.free = append(c.free, p)
	}
}

// Forget drops the tokens of a sequence from position n on.
func (c *Cache) Forget(seq, n int) {
	s := &c.seqs[seq]
	if n >= s.held {
		return
	}
	keep := (n + kernel.Page - 1) / kernel.Page
	for _, p := range s.pages[keep:] {
		c.drop(p)
	}
	clear(s.pages[keep:])
	s.pages, s.held = s.pages[:keep], n
	if m := n % kernel.Page; m > 0 && s.pages[keep-1].refs == 1 {
		c.own(s, m)
	}
}

// Copy makes the empty sequence dst hold the first n tokens of src, in the
// same pages.
func (c *Cache) Copy(dst, src, n int) {
	d, s := &c.seqs[dst], &c.seqs[src]
	d.pages = append(d.pages, s.pages[:(n+kernel.Page-1)/kernel.Page]...)
	d.held = n
	for _, p := range d.pages {
		p.refs++
	}
}

// layer are the keys and values of one layer of a page.
func (c *Cache) layer(p *page, layer int) (keys, values []float32) {
	half := c.Heads * c.Dim * kernel.Page
	at := 2 * half * layer
	return p.data[at : at+half], p.data[at+half : at+2*half]
}

// Put writes a token's key and value, of Heads*Dim values each.
func (c *Cache) Put(seq, layer, pos int, key, value []float32) {
	keys, values := c.layer(c.seqs[seq].pages[pos/kernel.Page], layer)
	i := pos % kernel.Page
	for x, v := range key {
		keys[x*kernel.Page+i] = v
	}
	for h := range c.Heads {
		copy(values[(h*kernel.Page+i)*c.Dim:], value[h*c.Dim:(h+1)*c.Dim])
	}
}

// Get reads what Put wrote.
func (c *Cache) Get(key, value []float32, seq, layer, pos int) {
	keys, values := c.layer(c.seqs[seq].pages[pos/kernel.Page], layer)
	i := pos % kernel.Page
	for x := range key {
		key[x] = keys[x*kernel.Page+i]
	}
	for h := range c.Heads {
		copy(value[h*c.Dim:(h+1)*c.Dim], values[(h*kernel.Page+i)*c.Dim:])
	}
}

// Attend computes one head's attention of a query over the first n tokens of a
// sequence: softmax(scale * q.k) v, into dst. weights is scratch of at least
// Context rounded up to whole pages plus 8 values. The order of the sums
// depends on positions only, not on where pages lie.
func (c *Cache) Attend(dst, query []float32, seq, layer, head, n int, scale float32, weights []float32) {
	pages := c.seqs[seq].pages
	size := c.Dim * kernel.Page
	for i := 0; i < n; i += kernel.Page {
		keys, _ := c.layer(pages[i/kernel.Page], layer)
		kernel.Scores((*[kernel.Page]float32)(weights[i:]), query, keys[head*size:(head+1)*size], scale)
	}
	top := kernel.Max(weights[:n])
	whole := (n + kernel.Lanes - 1) / kernel.Lanes * kernel.Lanes
	for i := n; i < whole; i++ {
		weights[i] = minusInf
	}
	norm := 1 / kernel.ExpSub(weights[:whole], top)
	clear(dst)
	for i := 0; i < n; i += kernel.Page {
		_, values := c.layer(pages[i/kernel.Page], layer)
		kernel.Mix(dst, weights[i:], values[head*size:(head+1)*size], min(kernel.Page, n-i))
	}
	for i := range dst {
		dst[i] *= norm
	}
}

// Weights makes scratch for Attend.
func (c *Cache) Weights() []float32 {
	return make([]float32, (c.Context+kernel.Page-1)/kernel.Page*kernel.Page+kernel.Lanes)
}

// Shared tells how many pages of a sequence others use too.
func (c *Cache) Shared(seq int) int {
	n := 0
	for _, p := range c.seqs[seq].pages {
		if p.refs > 1 {
			n++
		}
	}
	return n
}

// Bytes is the memory of all pages made so far.
func (c *Cache) Bytes() int {
	seen := slices.Clone(c.free)
	for _, s := range c.seqs {
		for _, p := range s.pages {
			if !slices.Contains(seen, p) {
				seen = append(seen, p)
			}
		}
	}
	return 4 * len(seen) * c.TokenValues() * kernel.Page
}
