// Package shard keeps the experts of a model in shards with slots, and copies
// them from shard to shard while tokens flow.
//
// A shard is a memory of its own: a replica in another shard is another copy
// of the weights. A Map says which shards hold each expert. It is never
// changed: a move builds new copies, verifies them, and publishes the next Map
// in one step. A step of the runner reads the Map once, so all of it is
// computed under one generation; weights of an old generation are freed when
// the last step that reads them has ended, because only then nothing refers to
// them.
package shard

import (
	"hash/crc32"

	"github.com/weirhq/weir/engine/moe/kernel"
)

// Expert is the weights of one expert of one layer: a SwiGLU network. It is
// never changed.
type Expert struct {
	Gate, Up, Down kernel.Matrix
	Sum            uint32 // CRC-32C of the weights, taken when the model was loaded
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// NewExpert makes an expert and takes its checksum.
func NewExpert(gate, up, down kernel.Matrix) *Expert {
	e := &Expert{Gate: gate, Up: up, Down: down}
	e.Sum = crc32.Checksum(e.appendBytes(nil), castagnoli)
	return e
}

// Bytes is the memory that the weights take.
func (e *Expert) Bytes() int { return e.Gate.Bytes() + e.Up.Bytes() + e.Down.Bytes() }

func (e *Expert) appendBytes(dst []byte) []byte {
	return e.Down.AppendBytes(e.Up.AppendBytes(e.Gate.AppendBytes(dst)))
}

// fromBytes makes an expert of e's shape from bytes that have its checksum.
func (e *Expert) fromBytes(src []byte) (*Expert, error) {
	out := &Expert{Sum: e.Sum}
	var err error
	for _, m := range []struct {
		to    *kernel.Matrix
		shape *kernel.Matrix
	}{{&out.Gate, &e.Gate}, {&out.Up, &e.Up}, {&out.Down, &e.Down}} {
		if *m.to, src, err = m.shape.FromBytes(src); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// chunk is the number of rows that Forward computes at a time: few enough that
// what lies between two products stays in cache.
const chunk = 32

// Scratch is what Forward needs between its products. It belongs to one shard.
type Scratch struct {
	gate, up, out []float32
	inner         *kernel.Input
	rows          []int32
}

// NewScratch makes scratch for experts of the given width and inner width.
func NewScratch(width, inner int) *Scratch {
	s := &Scratch{inner: kernel.NewInput(chunk, inner), rows: make([]int32, chunk)}
	pad := kernel.Lanes
	s.gate, s.up = make([]float32, chunk*(inner+pad)), make([]float32, chunk*(inner+pad))
	s.out = make([]float32, chunk*(width+pad))
	for i := range s.rows {
		s.rows[i] = int32(i)
	}
	return s
}

// Forward computes the expert on rows of x. The result of rows[j] goes to
// dst[to[j]*width:], width being Down's rows.
func (e *Expert) Forward(dst []float32, to []int32, x *kernel.Input, rows []int32, s *Scratch) {
	inner, stride := e.Gate.Rows, e.Gate.PaddedRows()
	for ; len(rows) > 0; rows, to = rows[min(chunk, len(rows)):], to[min(chunk, len(to)):] {
		part := rows[:min(chunk, len(rows))]
		e.Gate.Mul(s.gate, stride, x, part)
		e.Up.Mul(s.up, stride, x, part)
		for j := range part {
			kernel.Gate(s.inner.Row(j), s.gate[j*stride:j*stride+inner], s.up[j*stride:j*stride+inner])
			if e.Down.Quantised() {
				s.inner.Quantise(j)
			}
		}
		width, wide := e.Down.Rows, e.Down.PaddedRows()
		e.Down.Mul(s.out, wide, s.inner, s.rows[:len(part)])
		for j := range part {
			copy(dst[int(to[j])*width:(int(to[j])+1)*width], s.out[j*wide:])
		}
	}
}
