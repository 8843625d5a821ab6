package pool

import (
	"container/heap"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/cloud/roles"
	"github.com/weirhq/weir/cloud/route"
)

// BenchmarkMoves is a simulation on a clock of its own of what moves bring: real
// policy, pool, ledger and decision about moves; eight instances that decode
// whose steps take 10 ms and 1.5 more a stream, at 85 % of what they can do within
// 50 ms a token. A tenth of the answers makes most of the tokens. A copy stops
// both instances for 0.02 ms a token (a model with 128 KiB of KV a token over
// 6 GB/s), and the stream for 15 ms more. It tells the time per token of the
// slowest percent of answers, from arrival to end, and the largest load over the
// mean.
//
//	go test -run xx -bench Moves -benchtime 1x ./cloud/pool
func BenchmarkMoves(b *testing.B) {
	for _, world := range []balWorld{roomy, tight, outages} {
		for _, gateways := range []int{1, 4} {
			for _, moves := range []bool{false, true} {
				b.Run(fmt.Sprintf("%s/gateways=%d/moves=%v", world.name, gateways, moves), func(b *testing.B) {
					for b.Loop() {
						s := newBalanceSim(b, gateways, moves, world)
						s.run(12_000)
						s.metrics(b)
					}
					b.ReportMetric(0, "ns/op")
				})
			}
		}
	}
}

func (s *balanceSim) metrics(b *testing.B) {
	b.ReportMetric(s.quantile(.99), "p99-ms/token")
	b.ReportMetric(s.quantile(.999), "p99.9-ms/token")
	slices.Sort(s.waits)
	b.ReportMetric(s.waits[len(s.waits)*99/100], "p99-wait-ms")
	b.ReportMetric(s.quantile(.5), "p50-ms/token")
	b.ReportMetric(100*s.late(), "%late")
	b.ReportMetric(float64(s.preempted)/float64(s.ended), "preemptions/answer")
	b.ReportMetric(s.imbalance(), "imbalance")
	b.ReportMetric(float64(s.moves)/float64(s.ended), "moves/answer")
}

// TestMovesHelp: in a short run moves make the slowest answers faster and the
// load more even, every answer ends with all its tokens, and hardly any goes to
// and fro, with several gateways too.
func TestMovesHelp(t *testing.T) {
	for _, gateways := range []int{1, 4} {
		without, with := newBalanceSim(t, gateways, false, tight), newBalanceSim(t, gateways, true, tight)
		without.run(2500)
		with.run(2500)
		if with.moves == 0 || with.moves > with.ended/4 || without.moves != 0 || with.ended != 2500 || with.most > 3 {
			t.Errorf("%d gateways: %d moves of %d answers, at most %d of one", gateways, with.moves, with.ended, with.most)
		}
		if with.late() >= without.late() || with.preempted >= without.preempted/2 || with.quantile(.99) > 1.02*without.quantile(.99) {
			t.Errorf("%d gateways: with moves %.2f%% late, %d given up, p99 %.1f ms a token; without %.2f%%, %d, %.1f ms", gateways,
				100*with.late(), with.preempted, with.quantile(.99), 100*without.late(), without.preempted, without.quantile(.99))
		}
		for _, p := range with.gateways {
			for _, in := range p.inst {
				if len(in.ledger.legs) != 0 || in.ledger.total.Requests != 0 {
					t.Errorf("%s has legs left", in.Name)
				}
			}
			for operation, h := range p.moved {
				if h.from != nil {
					t.Errorf("stream %s got lost between two legs", operation)
				}
			}
		}
	}
}

// Sizes of the simulation.
const (
	balSlots    = 64
	balTokens   = 125 // of an answer on average
	balRate     = .85 * 21 / .042 / balTokens
	balPrefill  = 100 * time.Microsecond // of a token
	balCopy     = 20 * time.Microsecond  // of a token
	balDowntime = 15 * time.Millisecond
)

// balWorld is what an instance has room for, in tokens, and whether half of the
// instances are away for half a minute every two minutes.
type balWorld struct {
	name    string
	kv      int
	outages bool
}

var (
	roomy   = balWorld{"roomy", 64000, false}
	tight   = balWorld{"tight", 16000, false}
	outages = balWorld{"outages", 64000, true}
)

type balanceSim struct {
	balWorld
	rand      *rand.Rand
	clock     time.Duration
	events    simEvents
	gateways  []*Pool
	servers   map[string]*balServer
	order     []*balServer
	seq       uint64
	left      int
	answers   map[string]*balAnswer // that run or wait
	paces     []float64             // ms a token after the first
	waits     []float64             // ms until the first
	ratios    []float64
	ended     int
	preempted int
	moves     int // to even out the load
	most      int // of an answer
}

func newBalanceSim(t testing.TB, gateways int, moves bool, world balWorld) *balanceSim {
	s := &balanceSim{rand: rand.New(rand.NewPCG(3, 4)), balWorld: world, servers: map[string]*balServer{}, answers: map[string]*balAnswer{}}
	var list []Member
	for i := range simInstances {
		name := fmt.Sprint("i", i)
		list = append(list, Member{Name: name, URL: "http://" + name + ":1", Model: "m", Role: route.Decode})
		s.servers[name] = &balServer{name: name}
		s.order = append(s.order, s.servers[name])
	}
	o := Options{Members: list, Log: slog.New(slog.DiscardHandler), Client: &http.Client{Transport: engineFunc(func(*http.Request) (int, io.Reader) {
		return http.StatusOK, strings.NewReader("{}")
	})}}
	if moves {
		o.Moves = &roles.MoveParams{}
	}
	for range gateways {
		p, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		p.now = func() time.Duration { return time.Hour + s.clock }
		for _, in := range p.inst {
			p.note(in, health{Epoch: "e", Role: route.Decode}, nil)
		}
		s.gateways = append(s.gateways, p)
	}
	return s
}

func (s *balanceSim) after(d time.Duration, do func()) {
	heap.Push(&s.events, simEvent{s.clock + d, do})
}

// every calls do for as long as answers come or run.
func (s *balanceSim) every(d time.Duration, do func()) {
	s.after(d, func() {
		if do(); s.left > 0 || len(s.answers) > 0 {
			s.every(d, do)
		}
	})
}

func (s *balanceSim) run(n int) {
	s.left = n
	var arrive func()
	arrive = func() {
		s.arrival(n - s.left)
		if s.left--; s.left > 0 {
			s.after(time.Duration(s.rand.ExpFloat64()*float64(time.Second)/balRate/float64(len(s.order))), arrive)
		}
	}
	s.report()
	s.after(time.Millisecond, arrive)
	s.every(50*time.Millisecond, s.report)
	if s.outages {
		s.every(2*time.Minute, func() {
			for _, x := range s.order[:len(s.order)/2] {
				s.restart(x)
			}
		})
	}
	for i, g := range s.gateways {
		s.after(time.Duration(i)*60*time.Millisecond, func() { s.every(steerEvery, func() { s.look(g) }) })
	}
	for len(s.events) > 0 {
		e := heap.Pop(&s.events).(simEvent)
		s.clock = e.at
		e.do()
	}
}

// length draws an answer's tokens.
func (s *balanceSim) length() int {
	mean := 50.
	if s.rand.IntN(10) == 0 {
		mean = 800
	}
	return 1 + int(s.rand.ExpFloat64()*mean)
}

func (s *balanceSim) arrival(i int) {
	a := &balAnswer{operation: fmt.Sprint(i), gateway: s.gateways[s.rand.IntN(len(s.gateways))], arrived: s.clock, tokens: s.length()}
	s.answers[a.operation] = a
	s.place(a, route.Measured{}, false)
	sum, most := 0, 0
	for _, x := range s.order {
		n := x.held()
		sum, most = sum+n, max(most, n)
	}
	s.ratios = append(s.ratios, float64(most*len(s.order))/float64(max(sum, 1)))
}

// place puts an answer where the policy says.
func (s *balanceSim) place(a *balAnswer, policy route.Policy, moved bool) {
	ask := Ask{RequestView: route.RequestView{Model: "m", PromptBytes: 400, Moved: moved, Resume: moved}, Operation: a.operation, Movable: true}
	a.selection, _ = a.gateway.Select(policy, route.Arrival, ask, s.rand.Uint64())
	at := s.servers[a.selection.Decode.ID]
	at.queue = append(at.queue, a)
	s.step(at)
}

// look has a gateway decide on moves and order them.
func (s *balanceSim) look(p *Pool) {
	p.bury()
	list := p.toMove()
	if p.opts.Moves != nil {
		list = append(list, p.balance(*p.opts.Moves)...)
	}
	for _, m := range list {
		p.giveAway(context.Background(), m)
		a := s.answers[m.leg.operation]
		a.to = m.leg.heir.Name
		if m.cause == CauseBalance {
			a.moves++
			s.moves++
			s.most = max(s.most, a.moves)
		}
	}
}

func (s *balanceSim) quantile(q float64) float64 {
	slices.Sort(s.paces)
	return s.paces[int(q*float64(len(s.paces)-1))]
}

// late is the share of answers whose tokens took longer than is wanted.
func (s *balanceSim) late() float64 {
	n := 0
	for _, p := range s.paces {
		if p > float64(wantTPOT)/float64(time.Millisecond) {
			n++
		}
	}
	return float64(n) / float64(len(s.paces))
}

func (s *balanceSim) imbalance() float64 {
	sum := 0.0
	for _, r := range s.ratios {
		sum += r
	}
	return sum / float64(len(s.ratios))
}
