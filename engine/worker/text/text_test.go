package text

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestFilter(t *testing.T) {
	tests := []struct {
		name   string
		stops  []string
		pieces []string
		want   []string // shown after each piece, then after Flush
		stop   bool
	}{
		{"plain", nil, []string{"a", "b"}, []string{"a", "b", ""}, false},
		{"stop over two pieces", []string{"END"}, []string{"abE", "ND", "x"}, []string{"ab", "", "", ""}, true},
		{"stop inside a piece", []string{"\n"}, []string{"ab\ncd"}, []string{"ab", ""}, true},
		{"a false start is shown", []string{"END"}, []string{"E", "N", "x"}, []string{"", "", "ENx", ""}, false},
		{"a false start at the end is flushed", []string{"END"}, []string{"aE", "N"}, []string{"a", "", "EN"}, false},
		{"the earliest of two stops", []string{"bcd", "ab"}, []string{"xabcd"}, []string{"x", ""}, true},
		{"overlapping start", []string{"aab"}, []string{"aa", "ab"}, []string{"", "a", ""}, true},
		{"rune in parts", nil, []string{"\xe2", "\x82", "\xac"}, []string{"", "", "€", ""}, false},
		{"four bytes", nil, []string{"\xf0\x9f\x98", "\x80"}, []string{"", "😀", ""}, false},
		{"invalid bytes pass", nil, []string{"\xff", "\x80a"}, []string{"\xff", "\x80a", ""}, false},
		{"half a rune at the end", nil, []string{"a\xe2\x82"}, []string{"a", "\xe2\x82"}, false},
		{"empty stops are ignored", []string{""}, []string{"a"}, []string{"a", ""}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := NewFilter(tt.stops)
			stopped := false
			for i, p := range tt.pieces {
				var out []byte
				if out, stopped = f.Push(nil, []byte(p)); string(out) != tt.want[i] {
					t.Errorf("piece %d shows %q, want %q", i, out, tt.want[i])
				}
			}
			if out := f.Flush(nil); string(out) != tt.want[len(tt.pieces)] || stopped != tt.stop {
				t.Errorf("flush %q, stopped %v; want %q, %v", out, stopped, tt.want[len(tt.pieces)], tt.stop)
			}
		})
	}
}

// TestShowsExactlyTheTextBeforeTheStop cuts a random text anywhere and compares
// what is shown with the text before the first stop string.
func TestShowsExactlyTheTextBeforeTheStop(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		whole := rapid.StringOfN(rapid.SampledFrom([]rune("ab€😀\n")), 0, 40, -1).Draw(t, "text")
		stops := rapid.SliceOfN(rapid.StringOfN(rapid.SampledFrom([]rune("ab€\n")), 1, 4, -1), 0, 3).Draw(t, "stops")
		f := NewFilter(stops)
		var shown []byte
		rest, fed := whole, ""
		for rest != "" {
			n := rapid.IntRange(1, min(len(rest), 5)).Draw(t, "cut")
			var stopped bool
			before := len(shown)
			fed += rest[:n]
			shown, stopped = f.Push(shown, []byte(rest[:n]))
			if !utf8.Valid(shown[before:]) {
				t.Fatalf("shows %q", shown[before:])
			}
			rest = rest[n:]
			if stopped {
				break
			}
		}
		shown = f.Flush(shown)
		want, first := fed, len(fed)
		for _, s := range stops {
			if at := strings.Index(fed, s); at >= 0 && at < first {
				want, first = fed[:at], at
			}
		}
		if rest != "" && first == len(fed) {
			t.Fatalf("stopped without a stop string in %q", fed)
		}
		if string(shown) != want {
			t.Fatalf("shows %q of %q with stops %q, want %q", shown, fed, stops, want)
		}
	})
}

// TestResumeShowsTheRest ends a text after any piece and goes on with another
// filter that knows how much was shown.
func TestResumeShowsTheRest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		piece := rapid.StringOfN(rapid.SampledFrom([]rune("ab€\n")), 1, 3, -1)
		pieces := rapid.SliceOfN(piece, 1, 12).Draw(t, "pieces")
		stops := rapid.SliceOfN(rapid.StringOfN(rapid.SampledFrom([]rune("ab€\n")), 1, 4, -1), 0, 2).Draw(t, "stops")
		at := rapid.IntRange(0, len(pieces)).Draw(t, "at")
		run := func(f *Filter, pieces []string) (out []byte, stopped bool) {
			for _, p := range pieces {
				if out, stopped = f.Push(out, []byte(p)); stopped {
					return out, true
				}
			}
			return f.Flush(out), false
		}
		want, _ := run(NewFilter(stops), pieces)
		first := NewFilter(stops)
		var shown []byte
		for _, p := range pieces[:at] {
			var stopped bool
			if shown, stopped = first.Push(shown, []byte(p)); stopped {
				return
			}
		}
		for _, more := range []int{0, len(first.held)} { // a gateway may have shown what was held
			second := NewFilter(stops)
			before := []byte(strings.Join(pieces[:at], ""))
			if !second.Resume(before, len(shown)+more) {
				t.Fatal("stopped before the end")
			}
			rest, stopped := run(second, pieces[at:])
			got := string(before[:len(shown)+more]) + string(rest)
			if got != string(want) && !(stopped && more > 0) {
				t.Fatalf("%q, want %q", got, want)
			}
		}
	})
	if NewFilter([]string{"b"}).Resume([]byte("abc"), 1) {
		t.Error("a complete stop string is no end")
	}
}
