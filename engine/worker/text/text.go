// Package text turns the pieces of generated tokens into text that may be
// shown: it ends before a stop string, never shows the beginning of one that
// may still complete, and never cuts a UTF-8 sequence.
package text

import (
	"bytes"
	"unicode/utf8"
)

// Filter holds back what may not be shown yet. The zero value has no stop
// strings. It allocates only to grow its buffer.
type Filter struct {
	stops   [][]byte
	held    []byte
	shown   int // bytes of held that the reader has already
	stopped bool
}

// NewFilter returns a Filter that ends before the first of stops. Empty stop
// strings are ignored.
func NewFilter(stops []string) *Filter {
	f := &Filter{}
	for _, s := range stops {
		if s != "" {
			f.stops = append(f.stops, []byte(s))
		}
	}
	return f
}

// Push adds a piece and appends to dst what may be shown now. stopped says that
// a stop string is complete: nothing more will be shown, and the rest of the
// text is dropped.
func (f *Filter) Push(dst, piece []byte) (out []byte, stopped bool) {
	if f.stopped {
		return dst, true
	}
	f.held = append(f.held, piece...)
	if at := f.find(); at >= 0 {
		f.stopped = true
		return f.release(dst, at), true
	}
	return f.release(dst, len(f.held)-max(f.partialStop(), partialRune(f.held))), false
}

// Resume makes an unused Filter go on after text, of which the first shown bytes
// have been shown elsewhere. The rest comes with the next Push. It is false when
// a stop string is complete in text already.
func (f *Filter) Resume(text []byte, shown int) bool {
	f.shown = shown
	rest, stopped := f.Push(nil, text)
	f.held = append(rest, f.held...)
	return !stopped
}

// Unshown is how many bytes are held back that the reader does not have.
func (f *Filter) Unshown() int { return max(0, len(f.held)-f.shown) }

// release appends the first n bytes of what is held to dst, but for those that
// have been shown.
func (f *Filter) release(dst []byte, n int) []byte {
	dst = append(dst, f.held[min(n, f.shown):n]...)
	f.shown = max(0, f.shown-n)
	f.held = f.held[:copy(f.held, f.held[n:])]
	return dst
}

// Flush appends what is still held back, at the end of a generation that met no
// stop string. An incomplete UTF-8 sequence is appended as it is.
func (f *Filter) Flush(dst []byte) []byte {
	if !f.stopped {
		return f.release(dst, len(f.held))
	}
	return dst
}

// find is where the earliest stop string begins, or -1. Held text is short: at
// most one stop string and one piece.
func (f *Filter) find() int {
	first := -1
	for _, s := range f.stops {
		if at := bytes.Index(f.held, s); at >= 0 && (first < 0 || at < first) {
			first = at
		}
	}
	return first
}

// partialStop is the length of the longest end of held that begins a stop
// string.
func (f *Filter) partialStop() int {
	longest := 0
	for _, s := range f.stops {
		for n := min(len(s)-1, len(f.held)); n > longest; n-- {
			if bytes.HasSuffix(f.held, s[:n]) {
				longest = n
			}
		}
	}
	return longest
}

// partialRune is the length of a UTF-8 sequence at the end of b that lacks
// bytes, 0 when there is none.
func partialRune(b []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		if tail := b[len(b)-n:]; utf8.RuneStart(tail[0]) {
			if utf8.FullRune(tail) {
				return 0
			}
			return n
		}
	}
	return 0
}
