package cascade

import (
	"math"
	"strings"
	"testing"
)

// readTokens reads tokens, each with its own log-probability.
func readTokens(json bool, tokens ...string) *Accumulator {
	var a Accumulator
	if json {
		a.ExpectJSON()
	}
	for _, text := range tokens {
		a.AddText([]byte(text), bare(-1))
	}
	return &a
}

func bare(lp float64) Token { return Token{LogProb: lp, Margin: math.NaN(), Entropy: math.NaN()} }

func TestSpans(t *testing.T) {
	for _, tt := range []struct {
		name   string
		json   bool
		tokens string // separated by |
		want   SpanTokens
		usable bool
	}{
		{"plain", false, "The| answer| is| 4|.|", SpanTokens{6, 0, 0, 0}, true},
		{"one mark a token", false, "<think>|So|...|</think>|\n\n|4|", SpanTokens{3, 4, 0, 0}, true},
		{"marks in pieces", false, "\n|<|th|ink|>|So|</|think|>\n|4|", SpanTokens{3, 8, 0, 0}, true},
		{"marks beside text", false, "<think>So|</think>4|!", SpanTokens{2, 1, 0, 0}, true},
		{"a false mark", false, "a|<|b|>|c|</|div|>", SpanTokens{8, 0, 0, 0}, true},
		{"a mark in a mark", false, "<|<th|ink>|x|</think>|4", SpanTokens{2, 4, 0, 0}, true},
		{"opened by the prompt", false, "So|...|</think>|4|", SpanTokens{2, 3, 0, 0}, true},
		{"twice", false, "<think>|a|</think>|b|<think>|c|</think>|d", SpanTokens{2, 6, 0, 0}, true},
		{"no end", false, "4|<think>|hm", SpanTokens{1, 2, 0, 0}, false},
		{"a second end is text", false, "<think>|</think>|4|</think>", SpanTokens{2, 2, 0, 0}, true},
		{"json", true, `{"|city|":| "|Par|is|",| "|n|":| |12|,"ok":|true|}|`, SpanTokens{5, 0, 11, 0}, true},
		{"json in pieces", true, `{|"|a|\|"|b|"|:|[|1|,|"|x|\|"|"|]|,|"c|":|{|"d|":|"|e|"|}|}`, SpanTokens{5, 0, 23, 0}, true},
		{"json scalars", true, `"yes"`, SpanTokens{1, 0, 0, 0}, true},
		{"empty values", true, `{"a":"|"|,"b":[|]|,"c":{|}|}`, SpanTokens{3, 0, 4, 0}, true},
		{"json after reasoning", true, `<think>|{"a":1}|</think>|{"a":|2|}`, SpanTokens{1, 3, 2, 0}, true},
		{"brackets within text", true, `{"a":"|}]{[|"}`, SpanTokens{1, 0, 2, 0}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := readTokens(tt.json, strings.Split(tt.tokens, "|")...).Signals()
			if s.Spans != tt.want || s.Usable != tt.usable || s.Tokens != tt.want[SpanAnswer] {
				t.Errorf("%v usable %v, want %v %v", s.Spans, s.Usable, tt.want, tt.usable)
			}
		})
	}
}

func TestToolCallSpans(t *testing.T) {
	a := readTokens(false, "Let me", " look.")
	for _, text := range []string{"<tool_call>", `{"name": "`, "weather", `", "arguments": {"`, "city", `": "`, "Oslo", `"}}`, "</tool_call>"} {
		a.AddCall([]byte(text), bare(-1))
	}
	a.AddText(nil, bare(-1))
	if s := a.Signals(); s.Spans != (SpanTokens{3, 0, 7, 2}) {
		t.Errorf("%v", s.Spans)
	}
}

// A calibration of plain text does not judge answers with other spans; one that
// was fitted on such answers says so.
func TestCalibrationSaysWhatItScores(t *testing.T) {
	c := unitCalibration()
	plain, mixed := readTokens(false, "4", "").Signals(), readTokens(false, "<think>", "</think>", "4", "").Signals()
	for _, scored := range []string{"", ScoredAnswer} {
		c.Scored = scored
		if _, ok := c.Probability(&plain); !ok {
			t.Errorf("%q does not judge plain text", scored)
		}
		if _, ok := c.Probability(&mixed); ok != (scored == ScoredAnswer) {
			t.Errorf("%q judges an answer with reasoning: %v", scored, ok)
		}
	}
	for _, s := range []Signals{plain, mixed} {
		var samples []Sample
		for i := range 40 {
			samples = append(samples, Sample{Signals: s, Right: float64(i % 2)})
		}
		fit, err := FitPlatt(samples)
		if err != nil || (fit.Scored == ScoredAnswer) == s.Spans.Plain() {
			t.Errorf("fitted on %v it says %q (%v)", s.Spans, fit.Scored, err)
		}
	}
	c.Scored = "all"
	if c.Validate() == nil {
		t.Error("an unknown value is valid")
	}
}

// The answer's tokens are those with something of AnswerText, however the text is cut.
func FuzzSpans(f *testing.F) {
	for _, s := range []string{"a<think>b</think> c", "x</think>y</think>", "<<think><think></think>", "</</think>z", "<think>", `{"a":"<","b":[1]}`, "a <thin k"} {
		f.Add(s, uint64(0x5555), false)
		f.Add(s, uint64(0x1234567), true)
	}
	f.Fuzz(func(t *testing.T, text string, cuts uint64, json bool) {
		tokens, at := []string{}, 0
		for i := 1; i <= len(text); i++ {
			if i == len(text) || cuts>>(i%64)&1 == 1 {
				tokens = append(tokens, text[at:i])
				at = i
			}
		}
		a := readTokens(json, tokens...)
		s := a.SpanSignals(SpanAnswer)
		if total := s.Spans[0] + s.Spans[1] + s.Spans[2] + s.Spans[3]; total != len(tokens) {
			t.Fatalf("%q: %d tokens in spans, want %d", tokens, total, len(tokens))
		}
		if want := answerTokens(text, tokens, json); s.Tokens != want {
			t.Fatalf("%q: %d tokens of the answer, want %d", tokens, s.Tokens, want)
		}
	})
}

// answerTokens counts tokens that hold some of the answer by the whole text.
func answerTokens(text string, tokens []string, json bool) (n int) {
	kinds := make([]byte, len(text)) // 0 not the answer, 1 structure or space of it, 2 the answer
	var form jsonForm
	for _, i := range answerBytes(text) {
		kinds[i] = 1
		if json && form.value(text[i]) || !json && !isSpace(text[i]) {
			kinds[i] = 2
		}
	}
	at := 0
	for _, tok := range tokens {
		own := kinds[at : at+len(tok)]
		if strings.ContainsRune(string(own), 2) || !json && !strings.ContainsRune(string(own), 0) {
			n++
		}
		at += len(tok)
	}
	return n
}

// answerBytes are the places of AnswerText in the text.
func answerBytes(text string) (at []int) {
	start := 0
	if end := strings.Index(text, markClose); end >= 0 && !strings.Contains(text[:end], markOpen) {
		start = end + len(markClose)
	}
	for i := start; i < len(text); i++ {
		if strings.HasPrefix(text[i:], markOpen) {
			end := strings.Index(text[i:], markClose)
			if end < 0 {
				break
			}
			i += end + len(markClose) - 1
			continue
		}
		at = append(at, i)
	}
	return at
}

func TestAnswerText(t *testing.T) {
	for text, want := range map[string]string{
		"4": "4", "<think>x</think>4": "4", "x</think>4": "4", "a<think>x</think>b<think>y</think>c": "abc", "a<think>x": "a", "": "",
	} {
		if got := AnswerText(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
		if n := len(answerBytes(text)); n != len(want) {
			t.Errorf("%q: %d bytes of the answer, want %d", text, n, len(want))
		}
	}
}

func BenchmarkTextUpdate(b *testing.B) {
	for name, text := range map[string]string{"plain": " light", "think": "<think>", "json": `", "city": "`} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var a Accumulator
			if name == "json" {
				a.ExpectJSON()
			}
			token, text := bare(-.01), []byte(text)
			for b.Loop() {
				a.AddText(text, token)
			}
		})
	}
}
