package rebalance

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/weirhq/weir/experts/load"
	"github.com/weirhq/weir/experts/plan"
)

// sharedLoads reads a load file from the data folder beside the repository, or
// skips the test.
func sharedLoads(t testing.TB, name string) load.Counts {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		raw, err := os.ReadFile(filepath.Join(dir, "shared", "data", "experts", name))
		if err != nil {
			continue
		}
		var v struct {
			Logical load.Counts `json:"logical_count"`
			Counts  load.Counts `json:"counts"`
		}
		if err := json.Unmarshal(raw, &v); err != nil {
			t.Fatal(err)
		}
		return append(v.Logical, v.Counts...)
	}
	t.Skipf("no shared/data/experts/%s beside the repository", name)
	return nil
}

// resample draws a window of that many token-expert pairs per layer from the
// distribution of c: independent Poisson counts, which differ from a
// multinomial only in that their sum varies a little.
func resample(c load.Counts, draws float64, topK int, rng *rand.Rand) load.Window {
	out := load.NewCounts(len(c), c.Experts())
	for l, row := range c {
		sum := load.Sum(row)
		for e, x := range row {
			if x > 0 {
				out[l][e] = poisson(x/sum*draws, rng)
			}
		}
	}
	return load.Window{Phase: load.Decode, TopK: topK, Tokens: int64(draws) / int64(topK), Demand: out, Served: out}
}

func poisson(mean float64, rng *rand.Rand) float64 {
	if mean > 50 {
		return math.Round(math.Max(0, mean+math.Sqrt(mean)*rng.NormFloat64()))
	}
	limit, p, n := math.Exp(-mean), 1.0, -1.0
	for p > limit {
		p *= rng.Float64()
		n++
	}
	return math.Max(0, n)
}

func solved(t testing.TB, loads load.Counts, devices, spare int) plan.Placement {
	t.Helper()
	f, err := plan.Even(loads.Experts(), devices, spare)
	if err != nil {
		t.Fatal(err)
	}
	r, err := plan.Solve(plan.Problem{Loads: loads, Fleet: f})
	if err != nil {
		t.Fatal(err)
	}
	return r.Placement
}

// The bars of hysteresis: noise moves nothing in 100 windows, a change of
// traffic moves within 3. 50k draws a layer are the noise of 6k tokens, so 50k
// tokens pass all the more.
func TestHysteresisOnRealLoads(t *testing.T) {
	decode := sharedLoads(t, "deepseek-r1-sglang/decode_in1000out1000.json")
	prefill := sharedLoads(t, "deepseek-r1-sglang/prefill_in4096.json")
	rng := rand.New(rand.NewPCG(1, 2))
	c, s := Default(), NewState(solved(t, decode, 32, 32))
	worst := 0.0
	for w := range 100 {
		var d Decision
		s, d = Decide(c, s, Observation{Window: resample(decode, 50_000, 8, rng)})
		worst = max(worst, d.Now)
		if d.Action != Stay || d.Reason != Balanced {
			t.Fatalf("window %d of noise: %+v", w, d)
		}
	}
	t.Logf("100 windows of noise: imbalance at most %.4f", worst)
	for w := range 3 {
		var d Decision
		s, d = Decide(c, s, Observation{Window: resample(prefill, 50_000, 8, rng)})
		t.Logf("window %d after the shift: %s %s, imbalance %.4f, target %.4f, %d transfers", w+1, d.Action, d.Reason, d.Now, d.Target, d.Transfers)
		if d.Action == Move {
			if w != 2 {
				t.Errorf("moved after %d windows, patience is 3", w+1)
			}
			return
		}
	}
	t.Error("no move within 3 windows of a change of traffic")
}

// After a shift, bounded rounds settle, are verified, and then rest.
func TestLoopSettlesAfterShift(t *testing.T) {
	decode := sharedLoads(t, "deepseek-r1-sglang/decode_in1000out1000.json")
	prefill := sharedLoads(t, "deepseek-r1-sglang/prefill_in4096.json")
	rng := rand.New(rand.NewPCG(3, 4))
	c, s := Default(), NewState(solved(t, decode, 32, 32))
	c.Cooldown, c.Moves = 4, 16
	moves, last := 0, Decision{}
	for range 40 {
		s, last = Decide(c, s, Observation{Window: resample(prefill, 400_000, 8, rng)})
		if last.Action == Move {
			moves++
		}
		if last.Action == RollBack || last.Reason == WonLittle {
			t.Fatalf("a good move was judged bad: %+v", last)
		}
	}
	t.Logf("%d moves, imbalance %.4f at the end (%s)", moves, last.Now, last.Reason)
	if moves == 0 || moves > 3 || last.Now > c.Start || last.Reason != Balanced {
		t.Errorf("after 40 windows: %d moves, %+v", moves, last)
	}
}

// OLMoE: a placement learnt on one domain, then another domain's text.
func TestDomainShift(t *testing.T) {
	domains := []string{"arxiv", "c4", "github"}
	for _, from := range domains {
		for _, to := range domains {
			if from == to {
				continue
			}
			a := sharedLoads(t, "olmoe/olmoe-expert_counts-"+from+".json")
			b := sharedLoads(t, "olmoe/olmoe-expert_counts-"+to+".json")
			rng := rand.New(rand.NewPCG(5, 6))
			c, s := Default(), NewState(solved(t, a, 8, 8))
			c.Cooldown = 3
			stay := meanImbalance(s.Placement, b)
			transfers := 0
			for range 20 {
				var d Decision
				s, d = Decide(c, s, Observation{Window: resample(b, 100_000, 8, rng)})
				if d.Action == Move {
					transfers += d.Transfers
				}
			}
			got := meanImbalance(s.Placement, b)
			t.Logf("%s to %s: staying put %.3f, with %d transfers %.3f", from, to, stay, transfers, got)
			if stay > 1.15 && got > 1+(stay-1)*0.5 {
				t.Errorf("%s to %s: imbalance %.3f, staying put %.3f", from, to, got, stay)
			}
		}
	}
}

func meanImbalance(p plan.Placement, loads load.Counts) float64 {
	f := demand{loads, make([]float64, len(loads)), loads.MoE()}
	return load.Summarise(f.imbalances(p), f.moe).Mean
}
