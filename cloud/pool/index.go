package pool

import (
	"sort"

	"github.com/weirhq/weir/internal/prefix"
)

// Bounds of an index, in keys of 64 bytes of prompt each.
const (
	maxReported = 1 << 17 // about 8 MiB of prompts and 5 MiB of memory
	maxGuessed  = 1 << 14
)

// index holds the prefixes that an instance has cached. Reports make it exact;
// an engine that does not report gets the prefixes of what it was sent, the
// oldest forgotten first. The zero value is empty.
type index struct {
	keys    map[prefix.Key]struct{}
	guessed []prefix.Key // ring of keys that were guessed
	next    int
}

// add takes a reported key. Beyond the bound keys are left out, which costs
// hits and nothing else.
func (x *index) add(k prefix.Key) {
	if x.keys == nil {
		x.keys = map[prefix.Key]struct{}{}
	}
	if len(x.keys) < maxReported {
		x.keys[k] = struct{}{}
	}
}

func (x *index) evict(k prefix.Key) { delete(x.keys, k) }

// guess notes the prefixes of a request that the instance was sent. The longest
// come first, so that they are forgotten first.
func (x *index) guess(keys []prefix.Key) {
	if len(keys) > maxGuessed/4 {
		keys = keys[:maxGuessed/4]
	}
	for i := len(keys) - 1; i >= 0; i-- {
		k := keys[i]
		if _, ok := x.keys[k]; ok {
			continue
		}
		x.add(k)
		if len(x.guessed) < maxGuessed {
			x.guessed = append(x.guessed, k)
			continue
		}
		x.evict(x.guessed[x.next])
		x.guessed[x.next] = k
		x.next = (x.next + 1) % maxGuessed
	}
}

// hit is how many of a request's keys from the front are held. A prefix is held
// only with all that it begins with, so the border can be searched.
func (x *index) hit(keys []prefix.Key) int {
	if len(x.keys) == 0 {
		return 0
	}
	return sort.Search(len(keys), func(i int) bool {
		_, ok := x.keys[keys[i]]
		return !ok
	})
}
