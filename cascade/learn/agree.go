package learn

import (
	"encoding/json"
	"reflect"
	"strings"
	"unicode"
)

// longAnswer is the number of words from which two answers may agree in part:
// no model writes the same long text twice.
const longAnswer = 24

// Agree compares the edge's answer with the cloud's, in place of a judge: 1 when
// they say the same, 0 when they do not. Case, space and the punctuation around
// words do not count, nor does the layout of JSON. Long texts agree by the F1 of
// their words. It rewards copying the cloud's errors.
func Agree(edge, cloud string) float64 {
	var a, b any
	if json.Unmarshal([]byte(edge), &a) == nil && json.Unmarshal([]byte(cloud), &b) == nil && reflect.DeepEqual(a, b) {
		return 1
	}
	e, c := words(edge), words(cloud)
	switch {
	case len(e) == 0 || len(c) == 0:
		return 0
	case strings.Join(e, " ") == strings.Join(c, " "):
		return 1
	case min(len(e), len(c)) < longAnswer:
		return 0
	}
	return overlap(e, c)
}

// words are the answer's words in lower case, without punctuation around them.
// A word of nothing but signs, such as a minus, is kept.
func words(s string) []string {
	fields := strings.Fields(strings.ToLower(s))
	for i, f := range fields {
		if bare := strings.TrimFunc(f, func(r rune) bool { return unicode.IsPunct(r) && r != '-' && r != '%' }); bare != "" {
			fields[i] = bare
		}
	}
	return fields
}

// overlap is the F1 of two bags of words.
func overlap(a, b []string) float64 {
	count := make(map[string]int, len(a))
	for _, w := range a {
		count[w]++
	}
	common := 0
	for _, w := range b {
		if count[w] > 0 {
			count[w]--
			common++
		}
	}
	return 2 * float64(common) / float64(len(a)+len(b))
}
