package pool

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/engine/worker/cost"
	"github.com/weirhq/weir/engine/worker/state"
)

// pulled is one recent pull.
func pulled(bytes, seconds float64) *state.Pulls {
	p := new(state.Pulls)
	p.Note(bytes, seconds)
	return p
}

// TestShortPullsThenALongPrompt: hand-offs of short prompts, which are nearly all
// a fixed time, do not forbid that of a long one; and hand-offs of long prompts
// that are slow do, until they are forgotten.
func TestShortPullsThenALongPrompt(t *testing.T) {
	const kv = 1000 // bytes of a token
	long := Ask{RequestView: route.RequestView{Model: "m", PromptBytes: 16000}, Operation: "long"}
	goes := func(pulls *state.Pulls) string {
		p := still(t, Member{Name: "p", URL: "https://p:1", Role: route.Prefill, Model: "m"}, Member{Name: "d", URL: "https://d:1", Role: route.Decode, Model: "m"})
		for _, name := range []string{"p", "d"} {
			m := message(1, true)
			m.Epoch, m.Role, m.KVBytesPerToken = "e", string(p.find(name).Role), kv
			m.Load = state.Load{KVBlockSize: 16, KVBlocksTotal: 1000}
			m.Cost = &cost.Model{Pieces: []cost.Piece{{PerPrefill: .05}}} // 200 ms for the long prompt
			if name == "d" {
				m.PrefillTokensWaiting = 2000 // 100 ms behind
				m.Transfers = []state.Transfer{{Peer: "p:1", Recent: pulls}}
			}
			p.told(t, name, m)
		}
		s, d := p.Select(route.Measured{}, route.Arrival, long, 1)
		defer s.Release()
		return fmt.Sprint(s.Prefill != nil, d.Reasons)
	}
	const split, whole = "true [only_candidate split]", "false [only_candidate short_suffix]"
	rng := rand.New(rand.NewPCG(1, 2))
	var short state.Pulls
	for range 30 { // 10 ms and 1 us a token, give or take 5 ms
		n := 60 + rng.IntN(20)
		short.Note(float64(n*kv), .010+float64(n)*1e-6+.010*(rng.Float64()-.5))
	}
	if got := goes(&short); got != split {
		t.Errorf("after short pulls: %s", got)
	}
	short.Note(4000*kv, .015)
	if got := goes(&short); got != split {
		t.Errorf("after a long one: %s", got)
	}
	var slow state.Pulls
	for i := range 30 {
		n := float64(1000 + 100*i)
		slow.Note(n*kv, n*.1e-3) // 400 ms for the long prompt
	}
	if got := goes(&slow); got != whole {
		t.Errorf("over a slow network: %s", got)
	}
	if got := goes(nil); got != split {
		t.Errorf("when that is forgotten: %s", got)
	}
}
