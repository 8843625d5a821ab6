package gateway

import (
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/policy"
	cascades "github.com/weirhq/weir/cascade/stream"
	"github.com/weirhq/weir/cloud/cascading"
	"github.com/weirhq/weir/engine/fake"
	"github.com/weirhq/weir/internal/contract"
)

// tierNames are the pools of the longest cascade, in the order in which shorter
// ones take them; the last is always big.
var tierNames = []string{"small", "mid", "more", "big"}

// tierScript is what a pool says and what goes wrong with it.
type tierScript struct {
	pool   string
	words  []string
	unsure int // the token that is doubtful, -1 for none
	blind  bool
	fault  fake.Script
	both   bool // the fault is not one instance's alone
	gone   bool // there is no instance from the start
	vote   vote
}

// vote is what a pool's model says of its own answer.
type vote string

const (
	votesYes vote = "yes"
	votesNo  vote = "no"
	mumbles  vote = "neither"
	fails    vote = "503"
	breaks   vote = "breaks off"
)

// cascadeScript is a fault script of all pools with the client's wishes.
type cascadeScript struct {
	tiers    []tierScript
	lost     int // the tier whose instances go while the first request is answered, -1 for none
	form     bool
	max      int // tokens, 0 for no bound
	set      policy.Settings
	left     int64 // of the day's budget, nano-dollars
	stream   bool
	equals   int          // pools at the end, of which one is chosen
	cap      contract.USD // of the request's cost; 0 for none
	twice    bool         // the client asks again under the same key while it waits
	leavesAt int          // token of a leg at which the client goes, -1 for never
	key      string
}

const (
	perDay = 1_000_000_000
	worth  = 10_000_000
)

func drawCascade(r *rapid.T, n int) *cascadeScript {
	draw := func(name string, most int) int { return rapid.IntRange(0, most).Draw(r, name) }
	s := &cascadeScript{key: fmt.Sprint("key-", n), lost: -1, leavesAt: -1, stream: draw("streams", 4) > 0, form: draw("form", 4) == 0, twice: draw("twice", 7) == 0}
	count := rapid.SampledFrom([]int{2, 2, 3, 4}).Draw(r, "pools")
	for i := range count {
		name := tierNames[i]
		if i == count-1 {
			name = "big"
		}
		s.tiers = append(s.tiers, drawTier(r, name, s.form))
	}
	s.max = rapid.SampledFrom([]int{0, 3, 8}).Draw(r, "max_tokens")
	if draw("lost", 7) == 0 {
		s.lost = draw("which", count-1)
	}
	if s.equals = 1; count > 2 && draw("equals", 1) == 0 {
		s.equals = 2
	}
	if draw("capped", 4) == 0 {
		s.cap = contract.USD(rapid.SampledFrom([]int64{20_000, 100_000, 300_000, perDay}).Draw(r, "cap"))
	}
	if draw("leaves", 9) == 0 {
		s.leavesAt = draw("at", 3)
	}
	s.left = rapid.SampledFrom([]int64{0, 100_000, 300_000, perDay}).Draw(r, "left")
	s.drawPolicy(r)
	s.twice = s.twice && !s.hangs()
	return s
}

// hangs reports whether some model server stands still.
func (s *cascadeScript) hangs() bool {
	return slices.ContainsFunc(s.tiers, func(t tierScript) bool { return t.fault.Fault == fake.FaultStall })
}

func drawTier(r *rapid.T, name string, form bool) tierScript {
	pick := func(what string, most int) int { return rapid.IntRange(0, most).Draw(r, name+" "+what) }
	t := tierScript{pool: name, unsure: -1, blind: pick("blind", 9) == 0, both: pick("both", 1) == 0, gone: pick("gone", 7) == 0}
	for i := range pick("words", 6) {
		t.words = append(t.words, fmt.Sprint(name[:2], i, " "))
	}
	if form {
		t.words = []string{`{"` + name + `": `, `1, `, `"b": `, `2}`}[:3+min(1, pick("whole form", 3))]
	}
	if pick("sure", 1) == 0 {
		t.unsure = pick("unsure", 5)
	}
	t.vote = rapid.SampledFrom([]vote{votesYes, votesNo, votesNo, mumbles, fails, breaks}).Draw(r, name+" vote")
	if pick("faults", 2) == 0 {
		t.fault = fake.Script{Fault: rapid.SampledFrom(append(fake.Faults(), refused)).Draw(r, name+" fault"), After: pick("after", 4)}
	}
	return t
}

// refused is a fault of the address instead of the engine: nobody listens.
const refused fake.Fault = "refused"

func (s *cascadeScript) drawPolicy(r *rapid.T) {
	rules := []func(){
		func() { s.set.Value = &policy.Value{RightNano: worth} },
		func() { s.set.Budget = &policy.Budget{PerDayNano: perDay, RightNano: worth} },
		func() {},
		func() { s.set.Rate = new(.3) },
	}
	if len(s.tiers) > 2 {
		rules = rules[:2]
	}
	rules[rapid.IntRange(0, len(rules)-1).Draw(r, "policy")]()
	if rapid.Bool().Draw(r, "verify") {
		s.set.Verify = &policy.Verify{Samples: 3}
	}
	if w := rapid.SampledFrom([]int{-1, 0, 1, 2, 100}).Draw(r, "window"); w >= 0 {
		s.set.Window = &policy.Window{Tokens: w}
	}
	if len(s.tiers) == 2 {
		s.set.Handoff = rapid.SampledFrom([]cascades.Handoff{cascades.HandoffFinish, cascades.HandoffContinue, cascades.HandoffAppend}).Draw(r, "handoff")
	}
}

// model is the cascade under the script's policy.
func (s *cascadeScript) model() (Model, error) {
	o := cascading.Options{Policy: s.set, Continues: true, Equals: s.equals}
	for i, t := range s.tiers {
		tier := tierOf(t.pool, .6+.1*float64(i))
		tier.Calibration.Prefix = &cascade.Prefix{Tokens: 2, Bias: .5, Terms: tier.Calibration.Terms, PhiMean: 6, PhiSD: 1}
		tier.Calibration.Verifier = votesOf(200)
		o.Tiers = append(o.Tiers, tier)
	}
	entry, err := cascading.New(o)
	if err != nil {
		return Model{}, err
	}
	if s.set.Budget != nil {
		entry.Restore(spent(perDay - s.left))
	}
	return Model{Pool: "big", Cascade: entry}, nil
}

func (s *cascadeScript) body() string {
	extra := ""
	if s.max > 0 {
		extra = fmt.Sprintf(`,"max_tokens":%d`, s.max)
	}
	if s.form {
		extra += `,"response_format":{"type":"json_object"}`
	}
	return fmt.Sprintf(`{"model":"auto","stream":%v,"messages":[{"role":"user","content":"hi"}]%s}`, s.stream, extra)
}

// logprob is that of a tier's token.
func (t *tierScript) logprob(token int) float64 {
	switch {
	case t.blind:
		return math.NaN()
	case token == t.unsure:
		return -6
	}
	return -.001
}

// says is a tier's answer of at most so many tokens.
func (t *tierScript) says(most int) string {
	words := t.words
	if most > 0 && len(words) > most {
		words = words[:most]
	}
	return strings.Join(words, "")
}

// well reports whether a tier answers and nothing goes wrong with it.
func (s *cascadeScript) well(i int) bool {
	t := &s.tiers[i]
	return !t.gone && s.lost != i && (t.fault.Fault == "" || t.fault.Fault == fake.FaultLease || t.fault.Fault == fake.FaultTransfer) && len(t.words) > 0
}

// faultless reports whether no pool has a fault.
func (s *cascadeScript) faultless() bool {
	return !slices.ContainsFunc(s.tiers, func(t tierScript) bool { return t.fault.Fault != "" })
}

// patience is for how long the gateway waits for a model server that stands still:
// one that the script lets hang shows that soon, and no slow machine makes another
// hang.
func (s *cascadeScript) patience() time.Duration {
	if s.hangs() {
		return time.Second
	}
	return time.Minute
}

// finals are the answers that the pools may have given, alone or together.
func (s *cascadeScript) finals() []string {
	var all []string
	for i := range s.tiers {
		all = append(all, s.tiers[i].says(s.max))
	}
	first, last := &s.tiers[0], &s.tiers[len(s.tiers)-1]
	switch s.set.Handoff {
	case cascades.HandoffAppend:
		all = append(all, all[0]+"\n\n"+all[1])
	case cascades.HandoffContinue:
		for k := range first.words {
			left := 0
			if s.max > 0 {
				left = max(1, s.max-k)
			}
			all = append(all, first.says(k)+last.says(left))
		}
	}
	return all
}

// allowed reports whether a client may have got text, of a whole answer or of
// one that broke off.
func (s *cascadeScript) allowed(text string, whole bool) bool {
	return slices.ContainsFunc(s.finals(), func(final string) bool {
		return final == text || (!whole || s.cap > 0) && strings.HasPrefix(final, text)
	})
}

// answers reports whether some pool is sure to give an answer: the small one, or
// the large ones where no budget keeps them and nothing was shown before. A cap may
// keep all.
func (s *cascadeScript) answers() bool {
	large := true
	for i := range s.equals {
		large = large && s.well(len(s.tiers)-1-i)
	}
	return s.cap == 0 && (s.well(0) || s.set.Budget == nil && large)
}

// says answers a question about an answer.
func (v vote) says(w http.ResponseWriter, r *http.Request, body map[string]any) {
	switch v {
	case votesYes:
		votes(1, nil)(w, r, body)
	case votesNo:
		votes(0, nil)(w, r, body)
	case mumbles:
		says(200, `{"choices":[{"message":{"content":""},"logprobs":null}]}`)(w, r, body)
	case fails:
		says(503, `{}`)(w, r, body)
	default:
		dies(w, r, body)
	}
}
