package fair

// table finds queued items by small handles. Lists of the queue hold handles
// instead of pointers: an entry whose item has left is dead and is dropped
// when it is met, so that leaving writes to no neighbour and a dead entry holds
// no request in memory.
type table struct {
	items []*Item
	free  []uint32
}

// ref is a list's entry. The sequence number tells a reused handle apart.
type ref struct {
	handle uint32
	seq    uint32
}

func (t *table) add(it *Item) {
	if n := len(t.free); n > 0 {
		it.handle = t.free[n-1]
		t.free = t.free[:n-1]
		t.items[it.handle] = it
		return
	}
	it.handle = uint32(len(t.items))
	t.items = append(t.items, it)
}

func (t *table) remove(it *Item) {
	t.items[it.handle] = nil
	t.free = append(t.free, it.handle)
}

// get returns the item of a live entry, or nil.
func (t *table) get(r ref) *Item {
	if it := t.items[r.handle]; it != nil && it.seq == r.seq {
		return it
	}
	return nil
}
