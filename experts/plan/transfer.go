package plan

import "slices"

// Transfer is one expert that a device has to receive.
type Transfer struct {
	Layer  int `json:"layer"`
	Expert int `json:"expert"`
	From   int `json:"from"` // device that has it, -1 when none does
	To     int `json:"to"`
	Slot   int `json:"slot"` // in the new placement
}

// Transfers lists what must be copied to go from old to p, ordered by layer
// and slot. Each source is the holder that sends least so far, in this call.
func (p Placement) Transfers(old Placement) []Transfer {
	var out []Transfer
	sent := make(map[int]int)
	for l, row := range p.Layers {
		had := old.sets(l)
		at := 0
		for d, n := range p.Fleet.Slots {
			for s := at; s < at+n; s++ {
				e := int32(row[s])
				if d < len(had) && slices.Contains(had[d], e) || slices.Contains(row[at:s], row[s]) {
					continue
				}
				from := -1
				for g, set := range had {
					gone := g >= len(p.Fleet.Slots) || p.Fleet.Slots[g] == 0
					if !gone && slices.Contains(set, e) && (from < 0 || sent[g] < sent[from]) {
						from = g
					}
				}
				sent[from]++
				out = append(out, Transfer{Layer: l, Expert: row[s], From: from, To: d, Slot: s})
			}
			at += n
		}
	}
	return out
}
