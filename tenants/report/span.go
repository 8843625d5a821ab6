package report

import "time"

// source is where a span of time is summed from.
type source uint8

const (
	rows    source = iota // the ledger itself
	minutes               // usage_minute
	hours                 // usage_hour
)

// span is a part of the asked time, from lo to before hi.
type span struct {
	source source
	lo, hi time.Time
}

// spans cuts [from, to) into parts of the coarsest rollup that fits, so that a
// year costs no more than its hours and the ends are exact all the same. Sums
// by minute exist since kept. coarsest bounds what may be used.
func spans(from, to, kept time.Time, coarsest source) []span {
	return cut(nil, from, to, kept, coarsest)
}

func cut(out []span, from, to, kept time.Time, s source) []span {
	if !from.Before(to) {
		return out
	}
	var unit time.Duration
	switch s {
	case rows:
		return append(out, span{rows, from, to})
	case minutes:
		if from.Before(kept) {
			return append(out, span{rows, from, to})
		}
		unit = time.Minute
	case hours:
		unit = time.Hour
	}
	lo, hi := from.Truncate(unit), to.Truncate(unit)
	if lo.Before(from) {
		lo = lo.Add(unit)
	}
	if !lo.Before(hi) {
		return cut(out, from, to, kept, s-1)
	}
	out = cut(out, from, lo, kept, s-1)
	out = append(out, span{s, lo, hi})
	return cut(out, hi, to, kept, s-1)
}

// wholeHours reports whether the zone's clocks differ from UTC by whole hours
// all the time, so that its days and hours are made of UTC's hours.
func wholeHours(from, to time.Time, zone *time.Location) bool {
	for t := from; ; t = t.Add(12 * time.Hour) {
		if t.After(to) {
			t = to
		}
		if _, off := t.In(zone).Zone(); off%3600 != 0 {
			return false
		}
		if !t.Before(to) {
			return true
		}
	}
}
