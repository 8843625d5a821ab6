package fair

// pushShed puts a sheddable item on top of its band's stack of them.
func (q *Queue) pushShed(b *band, it *Item) {
	if it.sheddable = it.Sheddable; !it.sheddable {
		return
	}
	b.sheddable++
	b.shed = append(b.shed, ref{it.handle, it.seq})
	if len(b.shed) < 64 || len(b.shed) < 2*b.sheddable {
		return
	}
	kept := b.shed[:0]
	for _, r := range b.shed {
		if q.table.get(r) != nil {
			kept = append(kept, r)
		}
	}
	b.shed = kept
}

// topShed returns the newest sheddable item of a band, or nil.
func (q *Queue) topShed(b *band) *Item {
	for len(b.shed) > 0 {
		top := len(b.shed) - 1
		if it := q.table.get(b.shed[top]); it != nil {
			return it
		}
		b.shed = b.shed[:top]
	}
	return nil
}

// victim picks who makes room for a new item: the newest sheddable one of the
// lowest band, if its band is below the new one's, or is the same and the new
// one is not sheddable. The newest has waited least, and is most likely of the
// tenant that fills the queue.
func (q *Queue) victim(it *Item) *Item {
	for i := len(q.bands) - 1; i >= it.Band; i-- {
		if v := q.topShed(&q.bands[i]); v != nil && (i > it.Band || !it.Sheddable) {
			return v
		}
	}
	return nil
}
