// Package prerouter guesses from the prompt alone, before any model runs,
// whether the edge will be right and whether the cloud would help. Such guesses
// are weak: they may skip the edge pass, start a hedge or stand in for missing
// log-probabilities, and are never the main decider. It is pure.
package prerouter

import (
	"math"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Prompt is what the features are made of.
type Prompt struct {
	Text string
	// System identifies the route: the system prompt, or any stable label. It
	// is hashed as a whole and is the strongest feature of all.
	System      string
	Turns       int
	Tools       int
	SchemaDepth int
	Image       bool
}

// hashBits is the size of the feature space: 2^16 buckets of signed hashes.
const hashBits = 16

// routeBits is the size of the space of route identities.
const routeBits = 12

// Feature is one non-zero of a feature vector.
type Feature struct {
	Index uint32
	Value float64
}

// Slots of the dense features, below all hashed ones.
const (
	slotBias = iota
	slotLength
	slotDigits
	slotCode
	slotTurns
	slotTools
	slotDepth
	slotImage
	slotScript // one slot per script bucket
	slotRoute  = slotScript + 8
	slotHashed = slotRoute + 1<<routeBits
	dimension  = slotHashed + 1<<hashBits
)

// maxText bounds the text that is looked at, in bytes.
const maxText = 64 << 10

// Features appends the vector of p to dst: signed hashes of word uni- and
// bigrams and a few dense values. A Router weighs and scales the hashed part.
func Features(dst []Feature, p Prompt) []Feature {
	text := p.Text
	if len(text) > maxText {
		text = text[:maxText]
	}
	st := textStats(text)
	dst = append(dst,
		Feature{slotBias, 1},
		Feature{slotLength, math.Log1p(float64(len(p.Text)))/6 - 1},
		Feature{slotScript + uint32(st.script), 1})
	for _, f := range [...]Feature{
		{slotDigits, st.digits}, {slotCode, st.code}, {slotTurns, math.Log1p(float64(p.Turns))},
		{slotTools, math.Log1p(float64(p.Tools))}, {slotDepth, float64(min(p.SchemaDepth, 8)) / 4}, {slotImage, b2f(p.Image)},
	} {
		if f.Value != 0 {
			dst = append(dst, f)
		}
	}
	dst = appendWords(dst, text)
	if p.System != "" {
		h := hash(hashStart, p.System)
		dst = append(dst, Feature{slotRoute + uint32((h^h>>32)&(1<<routeBits-1)), routeValue})
	}
	return dst
}

// routeValue makes the identity of the route learn faster than a word.
const routeValue = 1.5

func appendWords(dst []Feature, text string) []Feature {
	previous := uint64(0)
	words := strings.FieldsFunc(text, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	for _, w := range words {
		h := hash(hashStart, strings.ToLower(w))
		dst = append(dst, hashed(h, 1))
		if previous != 0 {
			dst = append(dst, hashed(previous*31+h, .5))
		}
		previous = h
	}
	return dst
}

func hashed(h uint64, v float64) Feature {
	h ^= h >> 29
	h *= 0xbf58476d1ce4e5b9
	h ^= h >> 32
	if h>>63 != 0 {
		v = -v
	}
	return Feature{slotHashed + uint32(h&(1<<hashBits-1)), v}
}

const hashStart = 14695981039346656037

// hash is 64-bit FNV-1a.
func hash(h uint64, s string) uint64 {
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

type stats struct {
	digits, code float64
	script       int
}

// textStats looks at the share of digits, at code fences and braces, and at
// the most frequent script.
func textStats(text string) stats {
	var scripts [8]int
	digits, braces, n := 0, 0, 0
	for _, r := range text {
		n++
		switch {
		case r >= '0' && r <= '9':
			digits++
		case r == '{' || r == '}' || r == ';':
			braces++
		case r < utf8.RuneSelf && unicode.IsLetter(r):
			scripts[0]++
		case unicode.IsLetter(r):
			scripts[scriptOf(r)]++
		}
	}
	s := stats{}
	for i, c := range scripts {
		if c > scripts[s.script] {
			s.script = i
		}
	}
	if n > 0 {
		s.digits = float64(digits) / float64(n)
		s.code = math.Min(1, 20*float64(braces)/float64(n))
	}
	if strings.Contains(text, "```") {
		s.code = 1
	}
	return s
}

func scriptOf(r rune) int {
	for i, t := range []*unicode.RangeTable{unicode.Latin, unicode.Cyrillic, unicode.Greek, unicode.Arabic, unicode.Devanagari, unicode.Han} {
		if unicode.Is(t, r) {
			return 1 + i
		}
	}
	return 7
}

func b2f(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
