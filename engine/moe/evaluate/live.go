package evaluate

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/moe"
	"github.com/weirhq/weir/experts/gate"
	"github.com/weirhq/weir/experts/rebalance"
)

// LiveOptions size a run of Live. Zero values take the defaults.
type LiveOptions struct {
	CacheDir string // where the bundled model is unpacked
	Threads  int    // default 1
	Every    int    // take every n-th calibration prompt; default 8
	Window   int64  // tokens after which the loop decides; default 2,000
	// Routing turns the recommended LASER-style routing on; then answers change.
	Routing bool
	Seen    func(LiveWindow)
}

// LiveWindow is one window of load with what the loop decided on it.
type LiveWindow struct {
	Number   int
	After    bool // traffic has changed its topic
	Decision rebalance.Decision
	// Served is the imbalance of what shards computed. A decision's is of what
	// was asked for, split evenly over replicas.
	Served float64
	Tokens int
	Rate   float64 // tokens per second, prefill and decode together
}

// LiveReport is what a change of topic did. Imbalances are means over layers
// of the highest over the mean load of shards.
type LiveReport struct {
	Windows []LiveWindow
	Settled float64 // imbalance before the change
	Shifted float64 // the highest after it, before experts moved
	Decided int     // windows from the change to the move, 0: none within 3
	Final   float64 // imbalance three windows after the move
	Bound   float64 // no placement can be below, as the decision says

	Answers, Changed int // answers, and those that differ from a still placement's
	Failed           int // prompts that got no answer
	Moves            uint64
	Copied           int64
	// Tokens per second in the windows before the change, from the change until
	// the move is done, and later.
	Before, During, Later float64
	Shards                []moe.Shard
}

// Limit is what Final should be below: 1.10, or 3 % above the bound.
func (r LiveReport) Limit() float64 { return max(1.10, 1.03*r.Bound) }

// settleWindows is the most windows that the first placement gets to settle.
const settleWindows = 12

// Live serves commands with hub-cloud in 4 shards of 6 slots until its experts
// are in balance, then changes to arithmetic at once, and follows the loop.
// Every answer is compared with that of a runner whose experts stay.
func Live(ctx context.Context, o LiveOptions) (LiveReport, error) {
	l, err := newLive(ctx, o)
	if err != nil {
		return LiveReport{}, err
	}
	defer l.r.Close()
	for range settleWindows {
		w, err := l.window(false)
		if err != nil {
			return l.report, err
		}
		l.report.Settled = w.Decision.Now
		if w.Decision.Reason == rebalance.Balanced && w.Number >= 2 {
			break
		}
	}
	if err := l.shift(); err != nil {
		return l.report, err
	}
	return l.end()
}

// live is a run in progress.
type live struct {
	ctx           context.Context
	seen          func(LiveWindow)
	r             *moe.Runner
	s             *Server
	before, after stream
	report        LiveReport
}

// stream gives prompts for ever. Their numbers start at base.
type stream struct {
	prompts  [][]engine.Token
	base, at int
}

func (s *stream) next() (int, []engine.Token) {
	i := s.at % len(s.prompts)
	s.at++
	return s.base + i, s.prompts[i]
}

func newLive(ctx context.Context, o LiveOptions) (*live, error) {
	if o.Every == 0 {
		o.Every = 8
	}
	if o.Window == 0 {
		o.Window = 2000
	}
	if o.Seen == nil {
		o.Seen = func(LiveWindow) {}
	}
	load := moe.Options{Name: "hub-cloud", CacheDir: o.CacheDir, Threads: o.Threads, MaxSeqs: 8, Shards: 4, Slots: 6}
	still, err := moe.Load(load)
	if err != nil {
		return nil, err
	}
	defer still.Close()
	l := &live{ctx: ctx, seen: o.Seen}
	commands, err1 := Calibration(still, o.Every, "T1")
	timers, err2 := Calibration(still, o.Every, "T2")
	arithmetic, err3 := Calibration(still, o.Every, "T4")
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	l.before = stream{prompts: interleave(commands, timers)}
	l.after = stream{prompts: arithmetic, base: len(l.before.prompts)}
	want, err := Serve(still, slices.Concat(l.before.prompts, l.after.prompts), nil)
	if err != nil {
		return nil, err
	}
	b := moe.DefaultBalance()
	b.Window = o.Window
	load.Balance = &b
	if o.Routing {
		load.Gate, b.Config.Routed = []gate.Params{Recommended}, 1
	}
	if l.r, err = moe.Load(load); err != nil {
		return nil, err
	}
	l.s = NewServer(l.r, func(i int, answer string) {
		l.report.Answers++
		if answer != want[i] {
			l.report.Changed++
		}
	})
	return l, nil
}

// interleave takes from both in turn, as far as both go.
func interleave(a, b [][]engine.Token) (out [][]engine.Token) {
	for i := range min(len(a), len(b)) {
		out = append(out, a[i], b[i])
	}
	return out
}

// window serves until the loop has judged one more window.
func (l *live) window(after bool) (LiveWindow, error) {
	from := &l.before
	if after {
		from = &l.after
	}
	start, tokens, n := time.Now(), l.s.Tokens, uint64(len(l.report.Windows))
	computed := l.r.Experts().Computed
	for l.r.Experts().Windows == n {
		if err := l.ctx.Err(); err != nil {
			return LiveWindow{}, err
		}
		if _, err := l.s.Step(from.next); err != nil {
			return LiveWindow{}, err
		}
	}
	tokens = l.s.Tokens - tokens
	seen := l.r.Experts()
	w := LiveWindow{Number: int(n) + 1, After: after, Decision: seen.Decisions[n],
		Tokens: tokens, Rate: float64(tokens) / time.Since(start).Seconds()}
	for i, row := range seen.Computed {
		w.Served += unevenness(computed[i], row) / float64(len(seen.Computed))
	}
	l.report.Windows = append(l.report.Windows, w)
	l.seen(w)
	return w, nil
}

// unevenness is the highest over the mean of what counters rose by.
func unevenness(before, now []uint64) float64 {
	top, sum := 0.0, 0.0
	for i, x := range now {
		rise := float64(x - before[i])
		top, sum = max(top, rise), sum+rise
	}
	return top * float64(len(now)) / sum
}

// shift changes the topic and follows the loop until three windows after its
// move, or three windows without one.
func (l *live) shift() error {
	r := &l.report
	for n := 1; n <= 3 && r.Decided == 0; n++ {
		w, err := l.window(true)
		if err != nil {
			return err
		}
		r.Shifted = max(r.Shifted, w.Decision.Now)
		if w.Decision.Action == rebalance.Move {
			r.Decided, r.Bound = n, w.Decision.Bound
		}
	}
	if r.Decided == 0 {
		return nil
	}
	for range 3 {
		w, err := l.window(true)
		if err != nil {
			return err
		}
		r.Final = w.Decision.Now
	}
	return nil
}

// end lets running requests end and sums up.
func (l *live) end() (LiveReport, error) {
	for {
		busy, err := l.s.Step(func() (int, []engine.Token) { return 0, nil })
		if err != nil {
			return l.report, err
		}
		if !busy {
			break
		}
	}
	r, s := &l.report, l.r.Experts()
	r.Failed = l.before.at + l.after.at - r.Answers
	r.Moves, r.Copied, r.Shards = s.Moves, s.Copied, s.Shards
	var before, during, later mean
	moved := false
	for _, w := range r.Windows {
		switch {
		case !w.After:
			before.add(w)
		case moved:
			later.add(w)
		default:
			during.add(w)
		}
		moved = moved || w.After && w.Decision.Action == rebalance.Move
	}
	r.Before, r.During, r.Later = before.rate(), during.rate(), later.rate()
	return *r, nil
}

// mean is a rate over windows.
type mean struct{ tokens, seconds float64 }

func (m *mean) add(w LiveWindow) {
	m.tokens += float64(w.Tokens)
	m.seconds += float64(w.Tokens) / w.Rate
}

func (m mean) rate() float64 {
	if m.seconds == 0 {
		return 0
	}
	return m.tokens / m.seconds
}
