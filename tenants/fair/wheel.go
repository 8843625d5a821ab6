package fair

// wheel finds requests that have waited too long without sorting them: a
// hashed timing wheel (Varghese and Lauck, SOSP 1987). An item lies in the
// slot of its expiry; those a whole turn away are looked at once per turn.
type wheel struct {
	slots [wheelSlots]*Item
	at    int64 // tick that was looked at last
}

const (
	wheelSlots = 1024
	tickMicros = 50_000
)

func tick(us int64) int64 { return us / tickMicros }

func (w *wheel) add(it *Item) {
	it.slot = -1
	if it.expires == 0 {
		return
	}
	// One tick later, so that it has expired when its slot is looked at.
	it.slot = int(uint64(max(tick(it.expires), w.at)+1) % wheelSlots)
	it.wheelPrev, it.wheelNext = nil, w.slots[it.slot]
	if it.wheelNext != nil {
		it.wheelNext.wheelPrev = it
	}
	w.slots[it.slot] = it
}

func (w *wheel) remove(it *Item) {
	if it.slot < 0 {
		return
	}
	if it.wheelPrev == nil {
		w.slots[it.slot] = it.wheelNext
	} else {
		it.wheelPrev.wheelNext = it.wheelNext
	}
	if it.wheelNext != nil {
		it.wheelNext.wheelPrev = it.wheelPrev
	}
	it.wheelPrev, it.wheelNext, it.slot = nil, nil, -1
}

// advance calls expired for every item whose time has come; expired removes it
// from the wheel.
func (w *wheel) advance(now int64, expired func(*Item)) {
	to := tick(now)
	for t := max(w.at, to-wheelSlots) + 1; t <= to; t++ {
		for it := w.slots[uint64(t)%wheelSlots]; it != nil; {
			next := it.wheelNext
			if it.expires <= now {
				expired(it)
			}
			it = next
		}
	}
	w.at = max(w.at, to)
}
