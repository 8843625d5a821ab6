package shard

import (
	"context"
	"fmt"
	"hash/crc32"
	"slices"

	"github.com/weirhq/weir/experts/plan"
)

// piece is how much is copied before a cancelled move stops.
const piece = 64 << 10

// Apply moves experts while steps run: it copies what next needs into new
// memory, verifies checksums, and then publishes next under the generation. On
// an error the old map stays in force. It implements rebalance.Mover.
func (s *Set) Apply(ctx context.Context, generation uint64, old, next plan.Placement) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.current.Load()
	if err := s.fits(m, old, next); err != nil {
		return err
	}
	out := &Map{Generation: generation, Placement: next, homes: emptyHomes(len(next.Layers), next.Experts)}
	var buf [2][]byte
	for l := range next.Layers {
		for _, seat := range seats(next, l) {
			h, err := s.seat(ctx, m, l, seat, &buf)
			if err != nil {
				return fmt.Errorf("layer %d, expert %d to shard %d: %w", l, seat.expert, seat.shard, err)
			}
			out.add(l, seat.expert, h)
		}
	}
	s.current.Store(out)
	return nil
}

// fits refuses a placement that is not valid or not meant for what is in force.
func (s *Set) fits(m *Map, old, next plan.Placement) error {
	if err := next.Validate(); err != nil {
		return err
	}
	p := m.Placement
	same := func(a, b []int) bool { return slices.Equal(a, b) }
	if !slices.EqualFunc(old.Layers, p.Layers, same) || !slices.Equal(old.Fleet.Slots, p.Fleet.Slots) {
		return ErrStale
	}
	if next.Experts != p.Experts || len(next.Layers) != len(p.Layers) || next.Fleet.Devices() != len(s.lost) {
		return fmt.Errorf("%w: %d layers of %d experts on %d shards", plan.ErrPlacement, len(next.Layers), next.Experts, next.Fleet.Devices())
	}
	return nil
}

// seat gives an expert a home in a shard: the one that it has there, or a copy.
func (s *Set) seat(ctx context.Context, m *Map, layer int, at seat, buf *[2][]byte) (Home, error) {
	if s.Lost(at.shard) {
		return Home{}, ErrLost
	}
	homes := m.homes[layer][at.expert]
	for _, h := range homes {
		if h.Shard == at.shard {
			return h, nil
		}
	}
	for _, h := range homes {
		if !s.Lost(h.Shard) {
			e, err := s.transfer(ctx, h.Expert, buf)
			return Home{at.shard, e}, err
		}
	}
	e, err := s.restore(layer, at.expert)
	return Home{at.shard, e}, err
}

// restore reads an expert anew whose copies are all lost.
func (s *Set) restore(layer, expert int) (*Expert, error) {
	if s.reload == nil {
		return nil, fmt.Errorf("no copy is left: %w", ErrLost)
	}
	e, err := s.reload(layer, expert)
	if err != nil {
		return nil, fmt.Errorf("no copy is left: %w: %w", ErrLost, err)
	}
	if want := s.sums[layer][expert]; e.Sum != want {
		return nil, fmt.Errorf("read anew: %w: checksum %08x, want %08x", ErrDamaged, e.Sum, want)
	}
	s.copied.Add(int64(e.Bytes()))
	return e, nil
}

// transfer copies an expert and verifies the copy.
func (s *Set) transfer(ctx context.Context, e *Expert, buf *[2][]byte) (*Expert, error) {
	src := e.appendBytes(buf[0][:0])
	dst := slices.Grow(buf[1][:0], len(src))[:len(src)]
	buf[0], buf[1] = src, dst
	for at := 0; at < len(src); at += piece {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		end := min(at+piece, len(src))
		if err := s.carry(dst[at:end], src[at:end]); err != nil {
			return nil, fmt.Errorf("copy: %w", err)
		}
		s.copied.Add(int64(end - at))
	}
	if sum := crc32.Checksum(dst, castagnoli); sum != e.Sum {
		return nil, fmt.Errorf("%w: checksum %08x, want %08x", ErrDamaged, sum, e.Sum)
	}
	return e.fromBytes(dst)
}
