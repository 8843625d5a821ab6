package route

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestHotClass(t *testing.T) {
	holder := func(id string, queued int) InstanceView {
		return with(reports(id, Mixed, queued/100, 0, queued), func(in *InstanceView) { in.HitBytes = 3900 })
	}
	cold := reports("c", Mixed, 0, 0, 0)
	tests := []struct {
		name   string
		class  ClassView
		inst   []InstanceView
		want   string
		heat   Heat
		reason Reason
	}{
		{"begins like no other", ClassView{}, []InstanceView{cold, holder("h", 900)}, "h", "", ReasonAffinity},
		{"within its holders' share", ClassView{Count: 50, Share: .5}, []InstanceView{cold, holder("h", 900)}, "h", "", ReasonAffinity},
		{"too few to tell", ClassView{Count: 4, Share: 1}, []InstanceView{cold, holder("h", 900)}, "h", "", ReasonAffinity},
		{"hot, and kept by the scores", ClassView{Count: 50, Share: .9}, []InstanceView{cold, holder("h", 100)}, "h", HeatKept, ReasonProduct},
		{"hot, and spread by the scores", ClassView{Count: 50, Share: .9}, []InstanceView{cold, holder("h", 900)}, "c", "", ReasonProduct},
		{"hot for long", ClassView{Count: 50, Share: .9, Streak: 2}, []InstanceView{cold, holder("h", 100)}, "c", HeatSpread, ReasonHotSpread},
		{"two holders need twice as long", ClassView{Count: 50, Share: .9, Streak: 3}, []InstanceView{cold, holder("h", 100), holder("i", 200)}, "h", HeatKept, ReasonProduct},
		{"everybody holds it", ClassView{Count: 50, Share: 1, Streak: 9}, []InstanceView{holder("h", 100), holder("i", 200)}, "h", "", ReasonAffinity},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			slices.SortFunc(tt.inst, func(a, b InstanceView) int { return int(a.ID[0]) - int(b.ID[0]) })
			got := Measured{}.Decide(&Observation{Now: 9500 * time.Millisecond, Req: RequestView{Model: "m", PromptBytes: 4000, Class: tt.class}, Inst: tt.inst})
			if got.Action != (Send{Decode: tt.want}) || got.Heat != tt.heat || !slices.Contains(got.Reasons, tt.reason) {
				t.Errorf("got %+v %q %v, want %s %q because %s", got.Action, got.Heat, got.Reasons, tt.want, tt.heat, tt.reason)
			}
		})
	}
}

// TestTraffic: counts and shares are those of the window, whatever comes, and a
// streak ends with an arrival that was not kept.
func TestTraffic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var traffic Traffic
		var all []arrival
		streaks := map[Class]int{}
		now := time.Duration(0)
		for range rapid.IntRange(1, 60).Draw(t, "n") {
			now += time.Duration(rapid.IntRange(0, 20).Draw(t, "s")) * time.Second
			c := Class{byte(rapid.IntRange(0, 2).Draw(t, "class"))}
			all = append(all, arrival{now, c})
			count, total := map[Class]int{}, 0
			for _, a := range all {
				if now-a.at <= hotWindow {
					count[a.class]++
					total++
				}
			}
			got := traffic.Arrive(now, c)
			if count[c] == 1 {
				delete(streaks, c) // a class that was away is new
			}
			if want := (ClassView{count[c], float64(count[c]) / float64(total), streaks[c]}); got != want {
				t.Fatalf("%+v, want %+v", got, want)
			}
			heat := rapid.SampledFrom([]Heat{"", HeatKept, HeatSpread}).Draw(t, "heat")
			traffic.Learn(c, &Decision{Heat: heat})
			if streaks[c]++; heat != HeatKept {
				delete(streaks, c)
			}
			if len(traffic.counts) > 3 || len(traffic.streaks) > len(traffic.counts) {
				t.Fatalf("%d classes and %d streaks are kept", len(traffic.counts), len(traffic.streaks))
			}
		}
	})
}

// TestTrafficIsBounded: many arrivals in a window cost a bounded memory.
func TestTrafficIsBounded(t *testing.T) {
	var traffic Traffic
	for i := range 3 * maxArrivals {
		traffic.Arrive(time.Duration(i), Class{byte(i), byte(i >> 8), byte(i >> 16)})
	}
	if len(traffic.arrivals) != maxArrivals || len(traffic.counts) != maxArrivals {
		t.Errorf("%d arrivals, %d classes", len(traffic.arrivals), len(traffic.counts))
	}
}

// server is an instance of the simulation: it computes prompts one after the
// other.
type server struct {
	ends  []float64 // when each prompt is ready, in ms
	holds bool      // the hot prefix
}

// simulation is a pool under prompts of which a share begin with one long prefix.
// Times are in milliseconds.
type simulation struct {
	servers []server
	traffic *Traffic // nil: nobody detects hot classes
	rng     *rand.Rand
	waits   []float64 // until a hot prompt was ready
}

const (
	simPrefix = 2000 // tokens of the hot prefix
	simSuffix = 400  // tokens behind it
	simToken  = .1   // ms to compute a token
)

// run has prompts arrive every gap ms on average.
func (s *simulation) run(arrivals int, share, gap float64) {
	now := 0.0
	for i := range arrivals {
		now += s.rng.ExpFloat64() * gap
		s.arrive(now, s.rng.Float64() < share, uint64(i))
	}
}

func (s *simulation) arrive(now float64, hot bool, seed uint64) {
	clock := time.Duration(now * float64(time.Millisecond))
	o := &Observation{Now: clock, Seed: seed, Req: RequestView{Model: "m", PromptBytes: BytesPerToken * (simPrefix + simSuffix)}}
	for i := range s.servers {
		in := &s.servers[i]
		in.ends = slices.DeleteFunc(in.ends, func(end float64) bool { return end <= now })
		v := inst(string(rune('a'+i)), Mixed, 0)
		v.Load = Load{At: clock + 1, Running: len(in.ends), PrefillTokens: int((slices.Max(append(in.ends, now)) - now) / simToken)}
		if hot && in.holds {
			v.HitBytes = BytesPerToken * simPrefix
		}
		o.Inst = append(o.Inst, v)
	}
	class := Class{1}
	if !hot {
		class = Class{2, byte(seed), byte(seed >> 8), byte(seed >> 16)}
	}
	if s.traffic != nil {
		o.Req.Class = s.traffic.Arrive(clock, class)
	}
	d := Measured{}.Decide(o)
	if s.traffic != nil {
		s.traffic.Learn(class, &d)
	}
	at := &s.servers[d.Action.(Send).Decode[0]-'a']
	n := simSuffix + simPrefix
	if hot && at.holds {
		n = simSuffix
	}
	at.holds = at.holds || hot
	ready := slices.Max(append(at.ends, now)) + float64(n)*simToken
	at.ends = append(at.ends, ready)
	if hot {
		s.waits = append(s.waits, ready-now)
	}
}

func (s *simulation) holders() (n int) {
	for _, in := range s.servers {
		if in.holds {
			n++
		}
	}
	return n
}

// p99 is the time within which 99 of 100 hot prompts were ready.
func (s *simulation) p99() float64 {
	slices.Sort(s.waits)
	return s.waits[len(s.waits)*99/100]
}

func simulate(detects bool, share float64) *simulation {
	s := &simulation{servers: make([]server, 8), rng: rand.New(rand.NewPCG(1, 2))}
	if detects {
		s.traffic = &Traffic{}
	}
	// The pool is half busy if hot prompts cost their suffix and others all.
	mean := simToken * (share*simSuffix + (1-share)*(simPrefix+simSuffix))
	s.run(20000, share, mean/float64(len(s.servers))/.5)
	return s
}

// TestHotClassSpreads: a prefix that half of the prompts begin with gets more
// holders with the detector, and its prompts are ready sooner.
func TestHotClassSpreads(t *testing.T) {
	without, with := simulate(false, .5), simulate(true, .5)
	if without.holders() >= with.holders() || with.p99() >= without.p99() {
		t.Errorf("without the detector %d holders, p99 %.0f ms; with it %d, %.0f ms", without.holders(), without.p99(), with.holders(), with.p99())
	}
}

// BenchmarkHotClass prints what the detector does at several shares of a hot
// prefix: holders of 8 instances and the 99th percentile of its prompts.
func BenchmarkHotClass(b *testing.B) {
	for _, share := range []float64{.05, .2, .5, .8} {
		for _, detects := range []bool{false, true} {
			name := map[bool]string{false: "gate", true: "detector"}[detects]
			b.Run(fmt.Sprintf("%s/%.0f%%", name, 100*share), func(b *testing.B) {
				var s *simulation
				for b.Loop() {
					s = simulate(detects, share)
				}
				b.ReportMetric(float64(s.holders()), "holders")
				b.ReportMetric(s.p99(), "p99-ms")
			})
		}
	}
}
