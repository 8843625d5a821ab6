package pool

import (
	"container/heap"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/engine/worker/state"
)

// BenchmarkStaleness is a simulation on a clock of its own: requests arrive at
// random at gateways that share eight instances with eight sequences each, and
// instances report their load to every gateway after each change or now and then.
// It tells what late reports cost: how long the slowest percent of requests wait
// for a sequence, and how unequal the instances' load is (most over mean).
//
//	go test -run xx -bench Staleness -benchtime 1x ./cloud/pool
func BenchmarkStaleness(b *testing.B) {
	for _, gateways := range []int{1, 2, 4} {
		for _, every := range []time.Duration{0, 50 * time.Millisecond, 250 * time.Millisecond, time.Second} {
			b.Run(fmt.Sprintf("gateways=%d/reports=%s", gateways, every), func(b *testing.B) {
				for b.Loop() {
					s := newSimulation(b, gateways, every)
					s.run(40_000)
					b.ReportMetric(s.p99Wait().Seconds()*1000, "p99-wait-ms")
					b.ReportMetric(s.imbalance(), "imbalance")
				}
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// Sizes of the simulated pool: at load .85 of what it can do.
const (
	simInstances = 8
	simSlots     = 8
	simService   = 400 * time.Millisecond // mean, exponential
	simLoad      = .85
)

type simulation struct {
	rand     *rand.Rand
	clock    time.Duration
	every    time.Duration
	gateways []*Pool
	seq      uint64
	servers  []*simServer
	events   simEvents
	waits    []time.Duration
	ratios   []float64
}

// simServer is an instance: requests that run, and those that wait in line.
type simServer struct {
	name           string
	running, queue []*simRequest
}

type simRequest struct {
	operation string
	arrived   time.Duration
	selection Selection
}

// simEvent is what happens at a time.
type simEvent struct {
	at time.Duration
	do func()
}

type simEvents []simEvent

func (e simEvents) Len() int           { return len(e) }
func (e simEvents) Less(i, j int) bool { return e[i].at < e[j].at }
func (e simEvents) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *simEvents) Push(x any)        { *e = append(*e, x.(simEvent)) }
func (e *simEvents) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

func newSimulation(b *testing.B, gateways int, every time.Duration) *simulation {
	s := &simulation{rand: rand.New(rand.NewPCG(1, 2)), every: every}
	var members []Member
	for i := range simInstances {
		name := fmt.Sprintf("i%d", i)
		members = append(members, Member{Name: name, URL: "http://h", Model: "m"})
		s.servers = append(s.servers, &simServer{name: name})
	}
	for range gateways {
		p, err := New(Options{Members: members, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			b.Fatal(err)
		}
		p.now = func() time.Duration { return time.Hour + s.clock }
		for _, in := range p.inst {
			p.note(in, health{Epoch: "e"}, nil)
		}
		s.gateways = append(s.gateways, p)
	}
	s.reportAll()
	return s
}

func (s *simulation) after(d time.Duration, do func()) {
	heap.Push(&s.events, simEvent{s.clock + d, do})
}

func (s *simulation) exponential(mean time.Duration) time.Duration {
	return time.Duration(s.rand.ExpFloat64() * float64(mean))
}

// run lets n requests arrive and ends when all are done.
func (s *simulation) run(n int) {
	rate := simInstances * simSlots * simLoad / simService.Seconds()
	gap := time.Duration(float64(time.Second) / rate)
	left := n
	var arrive func()
	arrive = func() {
		s.arrival(n - left)
		if left--; left > 0 {
			s.after(s.exponential(gap), arrive)
		}
	}
	s.after(0, arrive)
	var tick func()
	tick = func() {
		s.reportAll()
		if left > 0 {
			s.after(s.every, tick)
		}
	}
	if s.every > 0 {
		s.after(s.every, tick)
	}
	for len(s.events) > 0 {
		e := heap.Pop(&s.events).(simEvent)
		s.clock = e.at
		e.do()
	}
}

func (s *simulation) arrival(i int) {
	g := s.gateways[s.rand.IntN(len(s.gateways))]
	r := &simRequest{operation: fmt.Sprint(i), arrived: s.clock}
	ask := Ask{RequestView: route.RequestView{Model: "m", PromptBytes: 400}, Operation: r.operation}
	r.selection, _ = g.Select(route.Measured{}, route.Arrival, ask, s.rand.Uint64())
	at := s.servers[slices.IndexFunc(s.servers, func(x *simServer) bool { return x.name == r.selection.Decode.ID })]
	at.queue = append(at.queue, r)
	s.begin(at)
	sum, most := 0, 0
	for _, x := range s.servers {
		n := len(x.running) + len(x.queue)
		sum, most = sum+n, max(most, n)
	}
	s.ratios = append(s.ratios, float64(most*simInstances)/float64(sum))
}

// begin runs what fits.
func (s *simulation) begin(at *simServer) {
	for len(at.queue) > 0 && len(at.running) < simSlots {
		r := at.queue[0]
		at.queue = at.queue[1:]
		at.running = append(at.running, r)
		s.waits = append(s.waits, s.clock-r.arrived)
		r.selection.Decode.Prefilled()
		s.after(s.exponential(simService), func() {
			at.running = slices.DeleteFunc(at.running, func(x *simRequest) bool { return x == r })
			r.selection.Release()
			s.begin(at)
		})
	}
	if s.every == 0 {
		s.report(at)
	}
}

func (s *simulation) reportAll() {
	for _, x := range s.servers {
		s.report(x)
	}
}

// report sends an instance's load to every gateway.
func (s *simulation) report(x *simServer) {
	s.seq++
	m := &state.Message{Full: true, Seq: s.seq, Epoch: "e", Role: "mixed", Health: healthOK, Load: state.Load{Running: len(x.running), Waiting: len(x.queue),
		PrefillTokensWaiting: 100 * len(x.queue), DecodeCtxTokens: 150 * len(x.running)}}
	for _, r := range slices.Concat(x.running, x.queue) {
		m.Requests = append(m.Requests, state.Request{Operation: r.operation})
	}
	for _, g := range s.gateways {
		if err := g.hear(g.find(x.name), m); err != nil {
			panic(err)
		}
	}
}

func (s *simulation) p99Wait() time.Duration {
	slices.Sort(s.waits)
	return s.waits[len(s.waits)*99/100]
}

// imbalance is the mean over arrivals of the largest load over the mean load.
func (s *simulation) imbalance() float64 {
	sum := 0.0
	for _, r := range s.ratios {
		sum += r
	}
	return sum / float64(len(s.ratios))
}
