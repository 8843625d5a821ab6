package moe

import (
	"github.com/weirhq/weir/engine/moe/kernel"
	"github.com/weirhq/weir/engine/moe/shard"
)

// jobs groups a layer's rows by shard and expert, by counting sort: group g is
// shard g/experts, expert g%experts.
type jobs struct {
	x      *kernel.Input
	group  []int32 // of each assignment, in order of row and rank
	row    []int32
	from   []int32         // where each group begins in rows and to, and the end
	expert []*shard.Expert // of each group
	rows   []int32         // sorted by group
	to     []int32         // the assignment's number
}

func newJobs(n, groups int) jobs {
	return jobs{group: make([]int32, 0, n), row: make([]int32, 0, n), from: make([]int32, groups+1),
		expert: make([]*shard.Expert, groups), rows: make([]int32, n), to: make([]int32, n)}
}

func (j *jobs) reset() { j.group, j.row = j.group[:0], j.row[:0] }

func (j *jobs) add(group int, e *shard.Expert, row int32) {
	j.group, j.row = append(j.group, int32(group)), append(j.row, row)
	j.expert[group] = e
}

func (j *jobs) sort() {
	clear(j.from)
	for _, g := range j.group {
		j.from[g+1]++
	}
	for g := 1; g < len(j.from); g++ {
		j.from[g] += j.from[g-1]
	}
	// from[g] walks to the end of its group, which is the start of the next.
	for i, g := range j.group {
		at := j.from[g]
		j.rows[at], j.to[at] = j.row[i], int32(i)
		j.from[g]++
	}
	for g := len(j.from) - 1; g > 0; g-- {
		j.from[g] = j.from[g-1]
	}
	j.from[0] = 0
}

// of are the rows of a group and where their results go.
func (j *jobs) of(g int) (rows, to []int32) {
	a, b := j.from[g], j.from[g+1]
	return j.rows[a:b], j.to[a:b]
}
