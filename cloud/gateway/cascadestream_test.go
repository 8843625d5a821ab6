package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/policy"
	cascades "github.com/weirhq/weir/cascade/stream"
	"github.com/weirhq/weir/cloud/cascading"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/tenants"
)

// smallScript is an answer of the small pool, token by token.
type smallScript struct {
	words []string
	probs []float64     // the last one holds for all further words
	cut   int           // the connection breaks after so many words, -1 for never
	fault bool          // it says why
	gate  chan struct{} // before the fourth word, where set
	blind bool          // no log-probabilities
	left  chan struct{} // has one when a request has ended before its answer
}

func (s *smallScript) prob(i int) float64 { return s.probs[min(i, len(s.probs)-1)] }

func (s *smallScript) serve(w http.ResponseWriter, r *http.Request, body map[string]any) bool {
	w.Header().Set("Content-Type", "text/event-stream")
	rc := http.NewResponseController(w)
	text := r.URL.Path == "/v1/completions"
	event := func(word string, probs, finish any, usage string) {
		choice := map[string]any{"index": 0, "logprobs": probs, "finish_reason": finish, "token_ids": nil}
		if text {
			choice["text"] = word
		} else {
			choice["delta"] = map[string]any{"content": word}
		}
		raw, _ := json.Marshal(choice)
		fmt.Fprintf(w, "data: {\"id\":\"s\",\"object\":\"chat.completion.chunk\",\"created\":2,\"model\":\"small\",\"choices\":[%s]%s}\n\n", raw, usage)
		_ = rc.Flush()
	}
	for i, word := range s.words {
		if s.cut >= 0 && s.cut == i && s.cut > 0 {
			if s.fault {
				fmt.Fprint(w, "data: {\"error\":{\"message\":\"x\",\"code\":500}}\n\n")
				return true
			}
			panic(http.ErrAbortHandler)
		}
		if s.gate != nil && i == 3 {
			select {
			case <-s.gate:
			case <-r.Context().Done():
				select {
				case s.left <- struct{}{}:
				default:
				}
				return true
			}
		}
		var probs any
		switch {
		case s.blind:
		case text:
			probs = map[string]any{"tokens": []string{word}, "token_logprobs": []float64{s.prob(i)}}
		default:
			probs = map[string]any{"content": []any{map[string]any{"token": word, "logprob": s.prob(i)}}}
		}
		event(word, probs, nil, "")
	}
	event("", nil, "stop", "")
	if options, _ := body["stream_options"].(map[string]any); options["include_usage"] == true {
		fmt.Fprintf(w, "data: {\"id\":\"s\",\"object\":\"chat.completion.chunk\",\"created\":2,\"model\":\"small\",\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":%d,\"total_tokens\":%d}}\n\n", len(s.words)+1, len(s.words)+6)
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
	return true
}

var six = []string{"one ", "two ", "three ", "four ", "five ", "six"}

// streamed is what a client got of a stream.
type streamed struct {
	text  string
	weir  contract.Result
	done  bool
	code  string // of the error that ended it
	ids   map[string]bool
	usage int
	begun int64 // when the events say that it was created
	raw   string
}

func readStreamed(t testing.TB, body string) streamed {
	t.Helper()
	out := streamed{ids: map[string]bool{}, raw: body}
	for _, data := range events(body) {
		if out.done || out.code != "" {
			t.Fatalf("something comes after the end: %s", body)
		}
		if data == "[DONE]" {
			out.done = true
			continue
		}
		var e struct {
			ID      string
			Created int64
			Choices []struct {
				Delta struct{ Content string }
				Text  string
			}
			Usage *struct {
				Completion int `json:"completion_tokens"`
			}
			Weir  *contract.Result
			Error *struct{ Code string }
		}
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			t.Fatalf("%v: %s", err, data)
		}
		if e.ID != "" {
			out.ids[e.ID] = true
		}
		if out.begun == 0 {
			out.begun = e.Created
		}
		if len(out.ids) > 1 || e.Created != out.begun && e.Error == nil {
			t.Fatalf("events of more than one answer: %s", body)
		}
		for _, c := range e.Choices {
			out.text += c.Delta.Content + c.Text
		}
		if e.Usage != nil {
			out.usage = e.Usage.Completion
		}
		if e.Weir != nil {
			out.weir = *e.Weir
		}
		if e.Error != nil {
			out.code = e.Error.Code
		}
	}
	return out
}

const askAuto = `{"model":"auto","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hi"}]}`

// A stream that is kept flows after its window: the client has its beginning
// while the small pool still makes the rest.
func TestKeptStreamFlows(t *testing.T) {
	r, small, large := cascadeRig(t, nil)
	gate := make(chan struct{})
	small.on((&smallScript{words: six, probs: []float64{-.001}, gate: gate}).serve)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.server.URL+"/v1/chat/completions", strings.NewReader(askAuto))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+r.key)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, lines := "", bufio.NewScanner(resp.Body)
	for lines.Scan() {
		body += lines.Text() + "\n"
		if gate != nil && strings.Contains(lines.Text(), "three") {
			close(gate) // what was shown so far came while the rest was not made yet
			gate = nil
		}
	}
	got := readStreamed(t, body)
	if gate != nil || got.text != "one two three four five six" || !got.done || got.weir.Reason != cascade.ReasonConfident || got.weir.Model != "small" || got.usage != 7 ||
		len(got.ids) != 1 || strings.Contains(body, `"logprob"`) || resp.Header.Get(contract.HeaderReason) != "" || resp.Header.Get(contract.HeaderTier) != "cloud" {
		t.Errorf("%+v %v", got, resp.Header)
	}
	if rows := r.newRows(t); len(rows) != 1 || rows[0].Outcome != tenants.OutcomeOK || rows[0].OutputTokens != 7 || large.decodes.Load() != 0 {
		t.Errorf("rows %+v", rows)
	}
}

// A stream that is doubted at its window is never seen; its leg ends when the
// large pool's answer has begun.
func TestStreamEscalatesAtItsWindow(t *testing.T) {
	r, small, _ := cascadeRig(t, nil)
	left := make(chan struct{}, 1)
	small.on((&smallScript{words: six, probs: []float64{-1}, gate: make(chan struct{}), left: left}).serve)
	got := readStreamed(t, r.chat(t, askAuto).body)
	take(t, "the small pool's leg ends", left)
	if got.text != "the light is on" || !got.done || got.weir.Model != "big" || got.weir.Reason != cascade.ReasonLowConfidence || got.weir.Attempts != 2 || got.usage != 4 {
		t.Errorf("%+v", got)
	}
	rows := r.newRows(t)
	if len(rows) != 2 || rows[0].Outcome != tenants.OutcomeEscalated || rows[0].Model != "small" || rows[0].OutputTokens == 0 || rows[1].Outcome != tenants.OutcomeOK ||
		rows[1].Model != "big" || int64(got.weir.CostUSD) != rows[0].CostNanoUSD+rows[1].CostNanoUSD {
		t.Errorf("rows %+v, told %+v", rows, got.weir)
	}
}

// Doubt after text was shown, by the hand-off.
func TestDoubtAfterTheWindow(t *testing.T) {
	for _, tt := range []struct {
		handoff cascades.Handoff
		text    string
		model   string
		tokens  int // of hand-over
	}{
		{"", "one two three four five six", "small", 0},
		{cascades.HandoffAppend, "one two three four five six\n\nthe light is on", "big", 6},
		{cascades.HandoffContinue, "one two three the light is on", "big", 3},
	} {
		r, small, large := cascadeRig(t, func(o *Options) {
			o.Models["auto"] = cascaded(t, policy.Settings{Handoff: tt.handoff}, tt.handoff == cascades.HandoffContinue)
		})
		small.on((&smallScript{words: six, probs: []float64{-.001, -.001, -6}}).serve)
		got := readStreamed(t, r.chat(t, strings.Replace(askAuto, `"stream":true`, `"stream":true,"max_tokens":100`, 1)).body)
		if got.text != tt.text || !got.done || got.weir.Model != tt.model || got.weir.Reason != cascade.ReasonLowConfidence || got.weir.HandoffToken != tt.tokens || len(got.ids) != 1 {
			t.Errorf("%q: %+v", tt.handoff, got)
		}
		rows := r.newRows(t)
		if want := map[bool]int{true: 1, false: 2}[tt.tokens == 0]; len(rows) != want || tt.tokens > 0 && (got.usage != tt.tokens+4 || rows[1].InputTokens != 7) {
			t.Errorf("%q: usage %d, rows %+v", tt.handoff, got.usage, rows)
		}
		if tt.handoff == cascades.HandoffContinue {
			body, _ := large.last()
			messages := body["messages"].([]any)
			if last := messages[len(messages)-1].(map[string]any); last["role"] != "assistant" || last["content"] != "one two three " || body["continue_final_message"] != true || body["max_tokens"] != float64(97) || body["weir_resume"] != nil {
				t.Errorf("the large pool was asked %v", body)
			}
		}
	}
}

// A large pool that fails costs nothing: the small one's answer stands.
func TestDraftStandsIn(t *testing.T) {
	for _, tt := range []struct {
		name  string
		body  string
		probs []float64
		set   policy.Settings
		why   cascade.Reason
	}{
		{"whole", `{"model":"auto","messages":[{"role":"user","content":"hi"}]}`, []float64{-3}, policy.Settings{}, cascade.ReasonCloudError},
		{"held", askAuto, []float64{-1}, policy.Settings{}, cascade.ReasonCloudError},
		{"shown", askAuto, []float64{-.001, -.001, -6}, policy.Settings{Handoff: cascades.HandoffAppend}, cascade.ReasonCloudError},
		{"shown in part", askAuto, []float64{-.001, -.001, -6}, policy.Settings{Handoff: cascades.HandoffContinue}, cascade.ReasonCloudError},
		{"doubted at once, and breaks its form at the end", strings.Replace(askAuto, "{", `{"response_format":{"type":"json_object"},`, 1), []float64{-.001, -6}, policy.Settings{}, cascade.ReasonValidatorFailed},
	} {
		r, small, large := cascadeRig(t, func(o *Options) { o.Models["auto"] = cascaded(t, tt.set, true) })
		large.on(dies)
		script := &smallScript{words: six, probs: tt.probs}
		small.on(func(w http.ResponseWriter, r *http.Request, body map[string]any) bool {
			if body["stream"] != true {
				return smallSays("one two three four five six", -3)(w, r, body)
			}
			return script.serve(w, r, body)
		})
		got := r.chat(t, tt.body)
		w, said := weirAt(t, lastEvent(got)), text(t, got.body)
		if got.status != 200 || said != "one two three four five six" || w.Model != "small" || w.Reason != tt.why || w.HandoffToken != 0 {
			t.Errorf("%s: %d %s", tt.name, got.status, got.body)
		}
		ok := 0
		rows := r.newRows(t)
		for _, row := range rows {
			if row.Outcome == tenants.OutcomeOK && row.Model == "small" {
				ok++
			} else if row.Outcome != tenants.OutcomeUpstreamError {
				t.Errorf("%s: row %+v", tt.name, row)
			}
		}
		if ok != 1 || int64(w.CostUSD) == 0 {
			t.Errorf("%s: rows %+v", tt.name, rows)
		}
	}
}

// lastEvent makes of a stream's reply one of its last event before the end mark.
func lastEvent(r reply) reply {
	if all := events(r.body); len(all) > 1 {
		r.body = all[len(all)-2]
	}
	return r
}

// A client that leaves ends both legs.
func TestCancelEndsBothLegs(t *testing.T) {
	r, small, large := cascadeRig(t, nil)
	left := make(chan struct{}, 1)
	small.on((&smallScript{words: six, probs: []float64{-1}, gate: make(chan struct{}), left: left}).serve)
	large.on(large.hangsAfter(0))
	leave := r.visit(t, askAuto)
	await(t, "the large pool is asked", func() bool { body, _ := large.last(); return body != nil })
	leave()
	take(t, "the small pool's leg ends", left)
	await(t, "the large pool's leg ends", func() bool { return large.cancelled.Load() == 1 })
	await(t, "two rows", func() bool { return len(r.ledger(t)) == 2 })
	for _, row := range r.newRows(t) {
		if row.Outcome != tenants.OutcomeClientCancelled {
			t.Errorf("row %+v", row)
		}
	}
}

// Three pools: each is asked where that pays, the best answer stands, and a
// request is three attempts at most.
func TestThreePools(t *testing.T) {
	calibration := func(print string) cascade.Calibration {
		c := cascade.Calibration{Version: 1, Fingerprint: print, Bias: .5, Terms: []cascade.Term{{Feature: cascade.FeatureProduct, Weight: 1}}}
		for i := range 21 {
			c.Quantiles = append(c.Quantiles, .1+.045*float64(i))
		}
		return c
	}
	small, mid, large := newInstance(t, "s", "mixed"), newInstance(t, "m", "mixed"), newInstance(t, "l", "mixed")
	small.model, small.weights, mid.model, mid.weights = "small", "fs", "mid", "fm"
	entry, err := cascading.New(cascading.Options{Policy: policy.Settings{Value: &policy.Value{RightNano: 1e6}},
		Tiers: []cascading.Tier{{Pool: "small", Calibration: calibration("fs"), Quality: .6}, {Pool: "mid", Calibration: calibration("fm"), Quality: .8}, {Pool: "big", Quality: .6}}})
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, func(o *Options) { o.Models["auto"] = Model{Pool: "big", Cascade: entry} }, small, mid, large)
	for _, tt := range []struct {
		name       string
		small, mid float64
		large      func(http.ResponseWriter, *http.Request, map[string]any) bool
		text, by   string
		rows       []tenants.Outcome
	}{
		{"the small one's", -.001, 0, nil, "small talk", "small", []tenants.Outcome{tenants.OutcomeOK}},
		{"the mid one's", -3, -.001, nil, "mid talk", "mid", []tenants.Outcome{tenants.OutcomeEscalated, tenants.OutcomeOK}},
		{"the large one's", -3, -3, nil, "the light is on", "big", []tenants.Outcome{tenants.OutcomeEscalated, tenants.OutcomeEscalated, tenants.OutcomeOK}},
		{"the better one's, for want of a large one", -2, -3, dies, "small talk", "small", []tenants.Outcome{tenants.OutcomeUpstreamError, tenants.OutcomeEscalated, tenants.OutcomeOK}},
	} {
		for _, stream := range []bool{false, true} {
			small.on(smallSays("small talk", tt.small))
			mid.on(midSays(tt.mid))
			large.on(tt.large)
			await(t, "all pools", r.allReady)
			got := r.chat(t, fmt.Sprintf(`{"model":"auto","max_tokens":2,"stream":%v,"messages":[{"role":"user","content":"hi"}]}`, stream))
			rows, w := r.newRows(t), weirAt(t, lastEvent(got))
			if said := text(t, got.body); said != tt.text || w.Model != tt.by || w.Attempts != len(tt.rows) || len(rows) != len(tt.rows) {
				t.Fatalf("%s, stream %v: %q, %+v, rows %v", tt.name, stream, said, w, outcomes(rows))
			}
			sum := int64(0)
			for i, row := range rows {
				sum += row.CostNanoUSD
				if row.Outcome != tt.rows[i] {
					t.Errorf("%s, stream %v: rows %v", tt.name, stream, outcomes(rows))
				}
			}
			if int64(w.CostUSD) != sum {
				t.Errorf("%s, stream %v: told %v of %d", tt.name, stream, w.CostUSD, sum)
			}
		}
	}
}

// midSays is smallSays of the mid pool.
func midSays(logprob float64) func(http.ResponseWriter, *http.Request, map[string]any) bool {
	says := smallSays("mid talk", logprob)
	return func(w http.ResponseWriter, r *http.Request, body map[string]any) bool {
		return says(renamed{w}, r, body)
	}
}

// renamed is the small pool's answer under the mid pool's name.
type renamed struct{ http.ResponseWriter }

func (w renamed) Write(b []byte) (int, error) {
	_, err := w.ResponseWriter.Write([]byte(strings.ReplaceAll(string(b), `"model":"small"`, `"model":"mid"`)))
	return len(b), err
}

func (w renamed) Unwrap() http.ResponseWriter { return w.ResponseWriter }
