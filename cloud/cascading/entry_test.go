package cascading

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/policy"
	"github.com/weirhq/weir/cascade/stream"
	"github.com/weirhq/weir/cloud/gateway/chunk"
	"github.com/weirhq/weir/internal/logprobs"
)

func calibration() cascade.Calibration {
	return cascade.Calibration{Version: 1, Fingerprint: "fp", Bias: .5, Terms: []cascade.Term{{Feature: cascade.FeatureProduct, Weight: 1}}, Threshold: .75, CloudAccuracy: .98}
}

func chat(text string, logprobs ...float64) []byte {
	var tokens []string
	for _, v := range logprobs {
		tokens = append(tokens, fmt.Sprintf(`{"token":"x","logprob":%v}`, v))
	}
	return fmt.Appendf(nil, `{"id":"c","object":"chat.completion","created":7,"model":"small","choices":[{"index":0,"message":{"role":"assistant","content":%q},"finish_reason":"stop","logprobs":{"content":[%s]}}],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5},"x":1}`,
		text, strings.Join(tokens, ","))
}

// finish ends an answer that came at once.
func finish(d *Draft, a *Answer, ask Ask) stream.Output { return d.End(d.Score(a), ask) }

func read(t *testing.T, data []byte) *Answer {
	t.Helper()
	a, err := Read(data)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

const right = "fp:llama:1"

func pair(set policy.Settings, cal cascade.Calibration) Options {
	return Options{Tiers: []Tier{{Pool: "small", Calibration: cal}, {Pool: "large"}}, Policy: set}
}

func entry(t testing.TB, set policy.Settings) *Entry {
	t.Helper()
	e, err := New(pair(set, calibration()))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestJudge(t *testing.T) {
	e := entry(t, policy.Settings{})
	for _, tt := range []struct {
		name   string
		answer []byte
		ask    Ask
		what   stream.Ask
		reason cascade.Reason
	}{
		{"sure", chat("a", -.001, -.001), Ask{Fingerprint: right}, stream.AskNone, cascade.ReasonConfident},
		{"doubtful", chat("a", -.001, -2), Ask{Fingerprint: right}, stream.AskRestart, cascade.ReasonLowConfidence},
		{"empty", chat(" ", -.001), Ask{Fingerprint: right}, stream.AskRestart, cascade.ReasonValidatorFailed},
		{"no signal", chat("a"), Ask{Fingerprint: right}, stream.AskRestart, cascade.ReasonSignalUnusable},
		{"another model", chat("a", -.001), Ask{Fingerprint: "gq:llama:1"}, stream.AskRestart, cascade.ReasonSignalUnusable},
		{"an engine without a fingerprint", chat("a", -.001), Ask{}, stream.AskRestart, cascade.ReasonSignalUnusable},
		{"no time left", chat("a", -2), Ask{Fingerprint: right, Remaining: -1}, stream.AskNone, cascade.ReasonDeadline},
	} {
		c := e.Open(0)
		d := c.Draft(0, Form{})
		out := finish(d, read(t, tt.answer), tt.ask)
		if why := out.Reason + out.End.Reason; out.Ask != tt.what || out.Done != (tt.what == stream.AskNone) || why != tt.reason || d.Verdict().Reason != tt.reason {
			t.Errorf("%s: %+v %+v", tt.name, out, d.Verdict())
		}
		c.Settle(time.Unix(0, 0))
	}
}

// events feeds a stream of words with their log-probabilities and returns the
// first thing that is to be done, with how many words were fed.
func (d *Draft) feedAll(ask Ask, probs ...float64) (stream.Output, int) {
	for i, lp := range probs {
		c := chunk.Read(fmt.Appendf(nil, `{"choices":[{"delta":{"content":"x"},"logprobs":{"content":[{"logprob":%v}]}}]}`, lp))
		d.Shows()
		if out := d.Event(&c, func() Ask { return ask }, time.Unix(0, 0)); out != (stream.Output{}) {
			return out, i + 1
		}
	}
	return stream.Output{}, len(probs)
}

// A stream is judged when its window is over, or when it is lost before; after
// that doubt is the hand-off's affair.
func TestWindow(t *testing.T) {
	cal := calibration()
	cal.Prefix = &cascade.Prefix{Tokens: 3, Bias: .5, Terms: cal.Terms, PhiMean: 2, PhiSD: 1}
	ask := Ask{Fingerprint: right}
	for _, tt := range []struct {
		name  string
		set   policy.Settings
		form  Form
		probs []float64
		want  stream.Output
		after int
	}{
		{"good", policy.Settings{}, Form{Stream: true}, []float64{-.001, -.001, -.001, -.001}, stream.Output{Flush: true}, 3},
		{"doubtful", policy.Settings{}, Form{Stream: true}, []float64{-.4, -.4, -.4, -.4}, stream.Output{Ask: stream.AskRestart, Reason: cascade.ReasonLowConfidence}, 3},
		{"lost", policy.Settings{}, Form{Stream: true}, []float64{-5, -.001, -.001}, stream.Output{Ask: stream.AskRestart, Reason: cascade.ReasonLowConfidence}, 1},
		{"short", policy.Settings{}, Form{Stream: true, MaxTokens: 8}, []float64{-.4, -.4, -.4, -.4}, stream.Output{}, 4},
		{"whole", policy.Settings{}, Form{}, []float64{-.4, -.4, -.4, -.4}, stream.Output{}, 4},
		{"own window", policy.Settings{Window: &policy.Window{Tokens: 2}}, Form{Stream: true}, []float64{-.001, -.001}, stream.Output{Flush: true}, 2},
		{"none", policy.Settings{Window: &policy.Window{}, Handoff: stream.HandoffContinue}, Form{Stream: true}, []float64{-.001, -6}, stream.Output{Ask: stream.AskContinue, Reason: cascade.ReasonLowConfidence}, 2},
	} {
		o := pair(tt.set, cal)
		o.Continues = true
		e, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		if out, n := e.Open(0).Draft(0, tt.form).feedAll(ask, tt.probs...); out != tt.want || n != tt.after {
			t.Errorf("%s: %+v after %d", tt.name, out, n)
		}
	}
	if out, n := entry(t, policy.Settings{}).Open(0).Draft(0, Form{Stream: true}).feedAll(ask, -5, -5, -5, -5); n != 4 || out.Ask != stream.AskNone {
		t.Errorf("without a calibration for beginnings: %+v after %d", out, n)
	}
}

func TestRateIsHeld(t *testing.T) {
	rate := .3
	e := entry(t, policy.Settings{Name: "third", Rate: &rate})
	rng, escalated := rand.New(rand.NewPCG(1, 2)), 0
	const n = 4000
	for i := range n {
		c := e.Open(0)
		out := finish(c.Draft(0, Form{}), read(t, chat("a", -3*rng.Float64())), Ask{Fingerprint: right})
		if c.Policy() != "third" {
			t.Fatal(c.Policy())
		}
		if out.Ask != stream.AskNone && i >= n/2 {
			escalated++
		}
		c.Settle(time.Unix(0, 0))
	}
	if got := float64(escalated) / (n / 2); math.Abs(got-rate) > .02 {
		t.Errorf("share %v, want %v", got, rate)
	}
}

// A budget bounds the day's spending, requests under way included, and what was
// spent outlives a restart.
func TestBudget(t *testing.T) {
	set := policy.Settings{Budget: &policy.Budget{PerDayNano: 1000, RightNano: 1e9}}
	e, now := entry(t, set), time.Unix(86400*20000, 0)
	ask := Ask{Now: now, Fingerprint: right, Nano: [4]int64{0, 600}}
	first, second := e.Open(0), e.Open(0)
	if out := finish(first.Draft(0, Form{}), read(t, chat("a", -3)), ask); out.Ask != stream.AskRestart {
		t.Fatalf("%+v", out)
	}
	if out := finish(second.Draft(0, Form{}), read(t, chat("a", -3)), ask); out.End.Reason != cascade.ReasonBudget {
		t.Errorf("beyond what is promised: %+v", out)
	}
	if s := e.Saved(); s.Spent != 600 {
		t.Errorf("saved %+v", s)
	}
	first.Paid("large", 900, 0)
	first.Settle(now)
	second.Settle(now)
	again := entry(t, set)
	again.Restore(e.Saved())
	ask.Nano[1] = 200
	if out := finish(again.Open(0).Draft(0, Form{}), read(t, chat("a", -3)), ask); out.End.Reason != cascade.ReasonBudget {
		t.Errorf("after a restart: %+v", out)
	}
	ask.Now = now.Add(24 * time.Hour)
	if out := finish(again.Open(0).Draft(0, Form{}), read(t, chat("a", -3)), ask); out.Ask != stream.AskRestart {
		t.Errorf("the next day: %+v", out)
	}
}

func TestNewRefuses(t *testing.T) {
	for spec, why := range map[string]string{
		`{"mode":"auto"}`: "edge node", `{"privacy":"any"}`: "edge node", `{"hedge":true}`: "edge node", `{"sticky":true}`: "edge node", `{"skip_edge":true}`: "edge node",
		`{"validate":{"refusals":true}}`: "edge node", `{"risk":{"alpha":0.1,"delta":0.1,"max_rate":1}}`: "no labels", `{"shadow":0.1}`: "no labels", `{"handoff":"continue"}`: "continues: true",
	} {
		set, err := policy.Parse([]byte(spec))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := New(pair(set, calibration())); !errors.Is(err, policy.ErrSettings) || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", spec, err)
		}
	}
	for _, pools := range [][]string{nil, {"small"}, {"small", ""}, {"small", "small"}, {"a", "b", "c", "d", "e"}} {
		var o Options
		for _, p := range pools {
			o.Tiers = append(o.Tiers, Tier{Pool: p, Calibration: calibration()})
		}
		if _, err := New(o); err == nil {
			t.Errorf("pools %q", pools)
		}
	}
	if _, err := New(pair(policy.Settings{}, cascade.Calibration{})); err == nil {
		t.Error("no calibration")
	}
}

// What a client gets of a kept answer is what it would have got of the server.
func TestForms(t *testing.T) {
	a := read(t, chat("hello you", -.1, -.2))
	for _, probs := range []bool{false, true} {
		raw, err := a.Whole(probs)
		if err != nil {
			t.Fatal(err)
		}
		var w struct {
			X       int
			Choices []struct {
				Message  struct{ Content string }
				Logprobs *struct{ Content []any }
			}
		}
		if err := json.Unmarshal(raw, &w); err != nil || w.X != 1 || w.Choices[0].Message.Content != "hello you" || (w.Choices[0].Logprobs != nil) != probs {
			t.Errorf("%v: %s", err, raw)
		}
	}
	calls := read(t, []byte(`{"choices":[{"message":{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},"finish_reason":"tool_calls"}]}`))
	if calls.empty() {
		t.Error("a tool call is no empty answer")
	}
	text := read(t, []byte(`{"choices":[{"text":"hi","finish_reason":"stop","logprobs":{"token_logprobs":[-0.5,null]}}]}`))
	var scored logprobs.Scorer
	text.score(&scored)
	if s := scored.Signals(); s.Usable || s.Tokens != 1 {
		t.Errorf("%+v", s)
	}
}

// A token of a stream costs the judgement nothing but its log-probability.
func BenchmarkEvent(b *testing.B) {
	d := entry(b, policy.Settings{}).Open(0).Draft(0, Form{Stream: true})
	c := chunk.Read([]byte(`{"choices":[{"delta":{"content":"x"},"logprobs":{"content":[{"token":"x","logprob":-0.001,"bytes":[120],"top_logprobs":[]}]}}]}`))
	now, ask := time.Unix(0, 0), func() Ask { return Ask{Fingerprint: right} }
	b.ReportAllocs()
	for b.Loop() {
		d.Shows()
		d.Event(&c, ask, now)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(chat("a", -.1))
	f.Add([]byte(`{"choices":[{"text":"x","logprobs":{"token_logprobs":[1e308]}}]}`))
	f.Add([]byte(`{"choices":[]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := Read(data)
		if err != nil {
			return
		}
		if _, err := a.Whole(false); err != nil {
			t.Skip() // choices that are no objects
		}
	})
}
