package pool

import (
	"encoding/json"
	"log/slog"
	"math"
	"strings"
	"testing"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/worker/cost"
	"github.com/weirhq/weir/engine/worker/state"
	"github.com/weirhq/weir/internal/testproc"
)

// everything is a message with all that a worker may say.
func everything() *state.Message {
	m := message(1, true)
	m.Name, m.Model, m.Context, m.MaxSeqs, m.KVBytesPerToken = "a", "m", 8192, 64, 1<<20
	m.Fingerprint = &engine.Fingerprint{Weights: strings.Repeat("0", 64), Runner: "r", KV: "k"}
	m.PrefixQueries, m.PrefixHits, m.HitRate, m.Steps, m.StepMS, m.ModelMS, m.MigratedIn, m.DowntimeMS = 1e9, 1e8, 1, 1e9, 5000, 4000, 7, 900
	m.Requests = []state.Request{{Operation: "o", Phase: state.Decode, PromptTokens: 8000, Generated: 100}}
	p := state.Pulls{}
	for range 1000 {
		p.Note(1<<34, 60)
	}
	m.Transfers = []state.Transfer{{Peer: "127.0.0.1:7424", Pulls: 1e6, Failures: 3, Bytes: 1 << 50, Seconds: 1e7, Recent: &p}}
	m.Cost = &cost.Model{Fingerprint: "f", HeldOut: 3, Pieces: []cost.Piece{{Fixed: 400, PerDecode: 50, Samples: 1000, Residual: 2}}}
	return m
}

// TestPlausible: each number of a message is looked at, also in its lists.
func TestPlausible(t *testing.T) {
	if err := plausible(everything()); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*state.Message){
		"role":             func(m *state.Message) { m.Role = "king" },
		"no number":        func(m *state.Message) { m.Seq = 0 },
		"no epoch":         func(m *state.Message) { m.Epoch = "" },
		"negative":         func(m *state.Message) { m.Running = -1 },
		"blocks":           func(m *state.Message) { m.KVBlocksTotal = 1 << 40 },
		"waiting":          func(m *state.Message) { m.PrefillTokensWaiting = 1 << 40 },
		"hit rate":         func(m *state.Message) { m.HitRate = 1e308 },
		"hit rate above 1": func(m *state.Message) { m.HitRate = 1.5 },
		"not a number":     func(m *state.Message) { m.HitRate = math.NaN() },
		"step":             func(m *state.Message) { m.StepMS = -1e300 },
		"endless step":     func(m *state.Message) { m.StepMS = math.Inf(1) },
		"model":            func(m *state.Message) { m.ModelMS = -1 },
		"downtime":         func(m *state.Message) { m.DowntimeMS = 1e12 },
		"steps":            func(m *state.Message) { m.Steps = math.MaxUint64 },
		"hits":             func(m *state.Message) { m.PrefixHits = math.MaxUint64 },
		"prompt":           func(m *state.Message) { m.Requests[0].PromptTokens = -5 },
		"generated":        func(m *state.Message) { m.Requests[0].Generated = math.MaxInt },
		"operation":        func(m *state.Message) { m.Requests[0].Operation = strings.Repeat("x", 1000) },
		"weights":          func(m *state.Message) { m.Fingerprint.Weights = strings.Repeat("x", 1000) },
		"pulls":            func(m *state.Message) { m.Transfers[0].Pulls = -3 },
		"bytes":            func(m *state.Message) { m.Transfers[0].Bytes = -1 },
		"seconds":          func(m *state.Message) { m.Transfers[0].Seconds = math.Inf(1) },
		"recent":           func(m *state.Message) { m.Transfers[0].Recent.N = -1 },
		"squares":          func(m *state.Message) { m.Transfers[0].Recent.BytesSquared = 1e300 },
		"peer":             func(m *state.Message) { m.Transfers[0].Peer = strings.Repeat("x", 1000) },
		"peers":            func(m *state.Message) { m.Transfers = make([]state.Transfer, 2000) },
	} {
		m := everything()
		if change(m); plausible(m) == nil {
			t.Errorf("%s: taken for plausible", name)
		}
	}
}

// TestMispriced: a cost model that cannot be is left out, with one warning in the
// life of a process; the rest of the state is taken, and a good model later.
func TestMispriced(t *testing.T) {
	p, log := still(t, members("a")...), new(testproc.Log)
	p.opts.Log = slog.New(slog.NewTextHandler(log, nil))
	keys, in := keysOf(2), p.inst[0]
	tell := func(epoch string, seq uint64, change func(*cost.Model)) {
		m := everything()
		m.Epoch, m.Seq, m.KeysAdded = epoch, seq, texts(keys)
		change(m.Cost)
		if m.Cost.Check() != nil {
			m.ModelMS = -3e5 // what it says of the steps cannot be either
		}
		p.told(t, "a", m)
	}
	warned := func() int { return strings.Count(log.String(), "level=WARN") }
	good := func(*cost.Model) {}
	tell("e", 1, good)
	if in.known.cost == nil || in.known.modelMs != 4000 || warned() != 0 {
		t.Fatalf("a good one: %+v; %s", in.known.cost, log)
	}
	for seq, change := range []func(*cost.Model){
		func(m *cost.Model) { m.Pieces[0].Fixed = -1e6 },
		func(m *cost.Model) { m.Pieces[0].PerPair = 1e300 },
		func(m *cost.Model) { m.Pieces = nil },
	} {
		tell("e", uint64(seq+2), change)
		if v, r := p.observeLocked()[0], status(p, "a").Report; v.Cost != nil || in.known.modelMs != 0 || r == nil || r.Running != 2 || in.index.hit(keys) != 2 || len(in.known.copies) == 0 {
			t.Errorf("change %d: took %+v of the cost, %+v", seq, v.Cost, r)
		}
		if got := log.String(); warned() != 1 || !strings.Contains(got, "instance=a epoch=e ") {
			t.Errorf("change %d: %s", seq, got)
		}
	}
	if tell("e", 5, good); in.known.cost == nil || in.known.modelMs != 4000 {
		t.Error("a good one after them is not taken")
	}
	if tell("e2", 1, func(m *cost.Model) { m.Pieces = nil }); warned() != 2 || !strings.Contains(log.String(), "epoch=e2 ") {
		t.Errorf("another process: %s", log)
	}
}

// TestFullKV: a worker that says that more blocks are used than there are has
// none free.
func TestFullKV(t *testing.T) {
	p := still(t, members("a")...)
	m := everything()
	m.KVBlocksUsed, m.CachedBlocks = 300, 0
	p.told(t, "a", m)
	if l := p.find("a").known.load; l.KVFree != 0 || l.KVTokens != 1600 {
		t.Errorf("%+v", l)
	}
}

// FuzzPlausible: whatever a message says, what is taken of it can be shown, and
// no decision about it fails.
func FuzzPlausible(f *testing.F) {
	for _, m := range []*state.Message{everything(), crowded("a", 3, 4)} {
		data, err := json.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(data))
	}
	f.Add(`{"full":true,"seq":1,"epoch":"e","role":"mixed","step_ms":-1e300,"hit_rate":1e308,"transfers":[{"pulls":-3}]}`)
	f.Add(`{"full":true,"epoch":"e","role":"decode"}`)
	f.Fuzz(func(t *testing.T, text string) {
		m := new(state.Message)
		if json.Unmarshal([]byte(text), m) != nil {
			return
		}
		p := still(t, Member{Name: "a", URL: "http://h", Model: "m"})
		if p.hear(p.inst[0], m) != nil {
			return
		}
		r := p.Status()[0].Report
		if _, err := json.Marshal(r); err != nil || r.StepMs < 0 || r.HitRate < 0 || r.HitRate > 1 || r.KVFree < 0 || r.KVFree > r.KVTokens {
			t.Errorf("took %+v, %v", r, err)
		}
		if v := p.observeLocked()[0]; v.Cost != nil {
			ms := v.Cost.StepMs(v.Load.Running, v.Load.PrefillTokens, v.Load.DecodeContext, v.Load.PrefillTokens*v.Load.PrefillTokens/2)
			if !(ms >= 0) || math.IsInf(ms, 0) || millis(ms) < 0 {
				t.Errorf("a step of %v ms", ms)
			}
		}
		for _, c := range p.find("a").known.copies {
			if ms := c.Predict(1000); math.IsNaN(ms) || math.IsInf(ms, 0) {
				t.Errorf("a copy of %v ms: %+v", ms, c)
			}
		}
	})
}
