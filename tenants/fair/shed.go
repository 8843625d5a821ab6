package fair

// linkShed puts a sheddable item on top of its band's list of them.
func (b *band) linkShed(it *Item) {
	if it.sheddable = it.Sheddable; !it.sheddable {
		return
	}
	it.shedPrev, it.shedNext = nil, b.shed
	if b.shed != nil {
		b.shed.shedPrev = it
	}
	b.shed = it
}

func (b *band) unlinkShed(it *Item) {
	if !it.sheddable {
		return
	}
	if it.shedPrev == nil {
		b.shed = it.shedNext
	} else {
		it.shedPrev.shedNext = it.shedNext
	}
	if it.shedNext != nil {
		it.shedNext.shedPrev = it.shedPrev
	}
	it.shedPrev, it.shedNext = nil, nil
}

// victim picks who makes room for a new item: the newest sheddable one of the
// lowest band, if its band is below the new one's, or is the same and the new
// one is not sheddable. The newest has waited least, and is most likely of the
// tenant that fills the queue.
func (q *Queue) victim(it *Item) *Item {
	for i := len(q.bands) - 1; i >= it.Band; i-- {
		if v := q.bands[i].shed; v != nil && (i > it.Band || !it.Sheddable) {
			return v
		}
	}
	return nil
}
