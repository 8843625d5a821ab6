package fair

// wheel finds requests that have waited too long without sorting them: a
// hashed timing wheel (Varghese and Lauck, SOSP 1987). An item lies in the
// slot of its expiry; those a whole turn away are looked at once per turn.
type wheel struct {
	slots [wheelSlots][]ref
	at    int64 // tick that was looked at last
}

const (
	wheelSlots = 1024
	tickMicros = 50_000
)

func tick(us int64) int64 { return us / tickMicros }

func (w *wheel) add(it *Item) {
	if it.expires == 0 {
		return
	}
	// One tick later, so that it has expired when its slot is looked at.
	slot := &w.slots[uint64(max(tick(it.expires), w.at)+1)%wheelSlots]
	*slot = append(*slot, ref{it.handle, it.seq})
}

// advance calls expired for every item whose time has come, and drops it and
// all dead entries from the slots that it passes.
func (w *wheel) advance(now int64, t *table, expired func(*Item)) {
	to := tick(now)
	for at := max(w.at, to-wheelSlots) + 1; at <= to; at++ {
		slot := &w.slots[uint64(at)%wheelSlots]
		kept := (*slot)[:0]
		for _, r := range *slot {
			it := t.get(r)
			switch {
			case it == nil:
			case it.expires <= now:
				expired(it)
			default:
				kept = append(kept, r)
			}
		}
		*slot = kept
	}
	w.at = max(w.at, to)
}
