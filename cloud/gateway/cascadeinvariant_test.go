package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weirhq/weir/cascade/policy"
	cascades "github.com/weirhq/weir/cascade/stream"
	"github.com/weirhq/weir/tenants"
)

const largeSays = "the light is on"

// cascadeScript is a fault script of both pools with the client's wishes.
type cascadeScript struct {
	small   smallScript
	refuses int // status of the small pool, 0 for none
	large   string
	model   string
	handoff cascades.Handoff
	stream  bool
	key     string
}

var handoffs = []cascades.Handoff{cascades.HandoffFinish, cascades.HandoffContinue, cascades.HandoffAppend}

func drawCascade(r *rapid.T, n int) cascadeScript {
	s := cascadeScript{
		small:   smallScript{words: six[:rapid.IntRange(0, 6).Draw(r, "words")], probs: []float64{-.001}, cut: -1, blind: rapid.IntRange(0, 9).Draw(r, "blind") == 0},
		large:   rapid.SampledFrom([]string{"fine", "fine", "dies", "500", "busy", "cut", "empty"}).Draw(r, "large"),
		handoff: rapid.SampledFrom(handoffs).Draw(r, "handoff"),
		stream:  rapid.IntRange(0, 4).Draw(r, "stream") > 0,
		key:     fmt.Sprint("key-", n),
	}
	for range rapid.IntRange(0, 6).Draw(r, "sure") {
		s.small.probs = append(s.small.probs, -.001)
	}
	if rapid.IntRange(0, 2).Draw(r, "unsure") > 0 {
		s.small.probs = append(s.small.probs[1:], -6)
	}
	if rapid.IntRange(0, 3).Draw(r, "breaks") == 0 {
		s.small.cut, s.small.fault = rapid.IntRange(0, 5).Draw(r, "cut"), rapid.Bool().Draw(r, "fault")
	}
	if rapid.IntRange(0, 9).Draw(r, "refuses") == 0 {
		s.refuses = rapid.SampledFrom([]int{400, 500, 503}).Draw(r, "status")
	}
	s.model = fmt.Sprintf("%s-%d", s.handoff, rapid.SampledFrom([]int{0, 1, 2, 100}).Draw(r, "window"))
	return s
}

func (s *cascadeScript) says() string { return strings.Join(s.small.words, "") }

// serveSmall is the small pool under the script.
func (s *cascadeScript) serveSmall(w http.ResponseWriter, r *http.Request, body map[string]any) bool {
	switch {
	case s.refuses > 0:
		return says(s.refuses, `{"error":{"message":"no"}}`)(w, r, body)
	case body["stream"] == true:
		return s.small.serve(w, r, body)
	case s.small.cut > 0:
		panic(http.ErrAbortHandler)
	}
	var probs []any
	for i := range s.small.words {
		probs = append(probs, map[string]any{"token": "x", "logprob": s.small.prob(i)})
	}
	logprobs, _ := json.Marshal(map[string]any{"content": probs})
	if s.small.blind || probs == nil {
		logprobs = []byte("null")
	}
	fmt.Fprintf(w, `{"id":"s","object":"chat.completion","created":1,"model":"small","choices":[{"index":0,"message":{"role":"assistant","content":%q},"finish_reason":"stop","logprobs":%s}],"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}}`, s.says(), logprobs)
	return true
}

// allowed reports whether text is a beginning of an answer that the two pools
// may have given, alone or together.
func (s *cascadeScript) allowed(text string, together bool) bool {
	small := s.says()
	if strings.HasPrefix(small, text) || strings.HasPrefix(largeSays, text) {
		return true
	}
	for cut := range len(text) + 1 {
		rest := text[cut:]
		if s.handoff == cascades.HandoffAppend {
			if text[:cut] != small {
				continue
			}
			rest = strings.TrimPrefix(rest, "\n\n")
		}
		if together && strings.HasPrefix(small, text[:cut]) && strings.HasPrefix(largeSays, rest) {
			return true
		}
	}
	return false
}

func (f *instanceFake) asked() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.bodies)
}

func cascadeModels(t *testing.T) func(*Options) {
	return func(o *Options) {
		for _, h := range handoffs {
			for _, tokens := range []int{0, 1, 2, 100} {
				o.Models[fmt.Sprintf("%s-%d", h, tokens)] = cascaded(t, policy.Settings{Handoff: h, Window: &policy.Window{Tokens: tokens}}, true)
			}
		}
	}
}

// The streaming invariant under any fault script: what the client gets is a
// beginning of the final answer; there is one end; each attempt has one row, at
// its own price; a retry under the same Idempotency-Key is never billed again.
func TestCascadeInvariant(t *testing.T) {
	r, small, large := cascadeRig(t, cascadeModels(t))
	faults := map[string]func(http.ResponseWriter, *http.Request, map[string]any) bool{"fine": nil, "dies": dies, "500": says(500, `{"error":{"message":"x"}}`),
		"busy": says(503, `{"error":{"message":"x"}}`), "cut": large.diesAfter(2), "empty": func(w http.ResponseWriter, _ *http.Request, _ map[string]any) bool {
			w.Header().Set("Content-Type", "text/event-stream")
			return true
		}}
	count := 0
	rapid.Check(t, func(rt *rapid.T) {
		count++
		s := drawCascade(rt, count)
		small.on(s.serveSmall)
		large.on(faults[s.large])
		await(t, "both pools", r.allReady)
		smalls, larges := small.asked(), large.asked()
		r.newRows(t)
		first := r.chat(t, s.body(), "Idempotency-Key", s.key)
		rows := r.newRows(t)
		s.checkRows(rt, rows, small.asked()-smalls, large.asked()-larges)
		s.checkAnswer(rt, t, first, rows)
		if first.status != http.StatusOK || strings.Contains(first.body, `"error"`) {
			return
		}
		smalls, larges = small.asked(), large.asked()
		again := r.chat(t, s.body(), "Idempotency-Key", s.key)
		if again.body != first.body || len(r.newRows(t)) != 0 || small.asked() != smalls || large.asked() != larges {
			rt.Fatalf("a retry was billed again, or says something else: %s", again.body)
		}
	})
}

// TestCascadeInvariantLong is the same for long, for make soak.
func TestCascadeInvariantLong(t *testing.T) {
	if os.Getenv("WEIR_SOAK") == "" {
		t.Skip("WEIR_SOAK is not set")
	}
	for i := range 20 {
		t.Run(fmt.Sprint("round", i), TestCascadeInvariant)
	}
}

func (s *cascadeScript) body() string {
	return fmt.Sprintf(`{"model":%q,"stream":%v,"messages":[{"role":"user","content":"hi"}]}`, s.model, s.stream)
}

func (r *rig) allReady() bool {
	for _, s := range r.opts.Pool.Status() {
		if !s.Ready {
			return false
		}
	}
	return true
}

func (s *cascadeScript) checkRows(rt *rapid.T, rows []tenants.UsageRecord, smalls, larges int) {
	by, ids, ok := map[string]int{}, map[string]bool{}, 0
	for _, row := range rows {
		by[row.Model]++
		ids[row.AttemptID] = true
		if row.Outcome == tenants.OutcomeOK {
			ok++
		}
	}
	if by["small"] != smalls || by["big"] != larges || len(ids) != len(rows) || smalls > 1+2 || len(rows) > 3 || ok > 1 {
		rt.Fatalf("%d requests to the small pool, %d to the large one: rows %+v", smalls, larges, rows)
	}
}

func (s *cascadeScript) checkAnswer(rt *rapid.T, t *testing.T, got reply, rows []tenants.UsageRecord) {
	if got.status != http.StatusOK {
		if s.small.cut < 0 && s.refuses == 0 && len(s.small.words) > 0 || s.large == "fine" {
			rt.Fatalf("an answer was there: %d %s", got.status, got.body)
		}
		return
	}
	said, code, done, weir := "", "", true, weirOfEnd(t, got)
	if s.stream {
		all := readStreamed(t, got.body)
		said, code, done = all.text, all.code, all.done
		if len(all.ids) > 1 && code == "" {
			rt.Fatalf("ids %v", all.ids)
		}
	} else {
		said = text(t, got.body)
	}
	if done == (code != "") || !s.allowed(said, weir["handoff_token"] != nil || code != "") {
		rt.Fatalf("shown %q, done %v, error %q: %s", said, done, code, got.body)
	}
	sum := int64(0)
	for _, row := range rows {
		sum += row.CostNanoUSD
	}
	if cost, _ := weir["cost_usd"].(float64); int64(cost*1e9+.5) != sum {
		rt.Fatalf("the client is told %v, the rows have %d: %+v", cost, sum, rows)
	}
}

// weirOfEnd is the weir object of an answer's end.
func weirOfEnd(t *testing.T, got reply) map[string]any {
	t.Helper()
	body := got.body
	if all := events(body); len(all) > 0 {
		body = all[len(all)-1]
		if body == "[DONE]" {
			body = all[len(all)-2]
		}
	}
	return weirOf(t, body)
}
