package shard

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/weirhq/weir/experts/plan"
)

// Errors that callers tell apart.
var (
	// ErrLost says that a shard that is needed is lost.
	ErrLost = errors.New("shard is lost")
	// ErrDamaged says that copied weights do not have their checksum.
	ErrDamaged = errors.New("copied expert is damaged")
	// ErrStale says that a move starts from another placement than the one in
	// force.
	ErrStale = errors.New("placement to move from is not in force")
)

// Home is one copy of an expert.
type Home struct {
	Shard  int
	Expert *Expert
}

// Map says where the experts are.
type Map struct {
	Generation uint64
	Placement  plan.Placement
	homes      [][][]Home // [layer][expert], by ascending shard
}

// Homes are the copies of an expert. The slice must not be changed.
func (m *Map) Homes(layer, expert int) []Home { return m.homes[layer][expert] }

// Options are what a Set is made of.
type Options struct {
	Experts   [][]*Expert    // [layer][expert], as loaded
	Placement plan.Placement // to start with; its fleet's devices are the shards
	// Copy carries bytes from one shard's memory to another's; nil copies in
	// memory. What it damages is found by the checksum.
	Copy func(dst, src []byte) error
	// Reload reads an expert's weights again when no shard has a copy left; nil
	// where nobody can.
	Reload func(layer, expert int) (*Expert, error)
}

// Set is the shards of one model.
type Set struct {
	current atomic.Pointer[Map]
	lost    []atomic.Bool
	carry   func(dst, src []byte) error
	reload  func(layer, expert int) (*Expert, error)
	sums    [][]uint32 // of the experts as loaded, [layer][expert]

	mu     sync.Mutex // one change at a time
	copied atomic.Int64
}

// New fills the shards. The first copy of each expert takes over the loaded
// weights; each replica is copied.
func New(o Options) (*Set, error) {
	p := o.Placement
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if len(p.Layers) != len(o.Experts) || len(o.Experts) == 0 || p.Experts != len(o.Experts[0]) {
		return nil, fmt.Errorf("%w: placement of %d layers of %d experts for another model", plan.ErrPlacement, len(p.Layers), p.Experts)
	}
	s := &Set{lost: make([]atomic.Bool, p.Fleet.Devices()), carry: o.Copy, reload: o.Reload, sums: sumsOf(o.Experts)}
	if s.carry == nil {
		s.carry = func(dst, src []byte) error { copy(dst, src); return nil }
	}
	m := &Map{Placement: p, homes: emptyHomes(len(p.Layers), p.Experts)}
	for l := range p.Layers {
		for _, seat := range seats(p, l) {
			have := o.Experts[l][seat.expert]
			if len(m.homes[l][seat.expert]) > 0 {
				var err error
				if have, err = have.fromBytes(have.appendBytes(nil)); err != nil {
					return nil, err
				}
			}
			m.add(l, seat.expert, Home{seat.shard, have})
		}
	}
	s.current.Store(m)
	return s, nil
}

func sumsOf(experts [][]*Expert) [][]uint32 {
	out := make([][]uint32, len(experts))
	for l, row := range experts {
		for _, e := range row {
			out[l] = append(out[l], e.Sum)
		}
	}
	return out
}

func emptyHomes(layers, experts int) [][][]Home {
	out := make([][][]Home, layers)
	for l := range out {
		out[l] = make([][]Home, experts)
	}
	return out
}

func (m *Map) add(layer, expert int, h Home) {
	m.homes[layer][expert] = append(m.homes[layer][expert], h)
}

type seat struct{ shard, expert int }

// seats lists the slots of a layer, shard after shard.
func seats(p plan.Placement, layer int) []seat {
	out := make([]seat, 0, len(p.Layers[layer]))
	at := 0
	for d, n := range p.Fleet.Slots {
		for _, e := range p.Layers[layer][at : at+n] {
			out = append(out, seat{d, e})
		}
		at += n
	}
	return out
}

// Map is the one in force.
func (s *Set) Map() *Map { return s.current.Load() }

// Shards is the number of shards, lost ones included.
func (s *Set) Shards() int { return len(s.lost) }

// Lost reports whether a shard is lost.
func (s *Set) Lost(shard int) bool { return s.lost[shard].Load() }

// AllLost lists the lost shards.
func (s *Set) AllLost() []int {
	var out []int
	for i := range s.lost {
		if s.lost[i].Load() {
			out = append(out, i)
		}
	}
	return out
}

// Lose takes a shard out of service, as when its process or machine has died:
// nothing is asked of it any more, from the next layer of a running step on.
func (s *Set) Lose(shard int) error {
	if shard < 0 || shard >= len(s.lost) {
		return fmt.Errorf("shard %d: there are 0 to %d", shard, len(s.lost)-1)
	}
	s.lost[shard].Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.current.Load()
	m := &Map{Generation: old.Generation, Placement: old.Placement, homes: emptyHomes(len(old.homes), old.Placement.Experts)}
	for l, row := range old.homes {
		for e, homes := range row {
			for _, h := range homes {
				if h.Shard != shard {
					m.add(l, e, h)
				}
			}
		}
	}
	s.current.Store(m)
	return nil
}

// Memory is the bytes of weights that each shard holds.
func (s *Set) Memory() []int64 {
	out := make([]int64, len(s.lost))
	for _, row := range s.Map().homes {
		for _, homes := range row {
			for _, h := range homes {
				out[h.Shard] += int64(h.Expert.Bytes())
			}
		}
	}
	return out
}

// Copied is the bytes of weights that moves have carried so far.
func (s *Set) Copied() int64 { return s.copied.Load() }
