package ledger

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/weirhq/weir/tenants"
)

// line is a row on its way into the ledger, with the ids that it is known by.
type line struct {
	attempt, tenant, device, operation uuid.UUID // no device is all zero
	day                                time.Time // the row's partition
	row                                *tenants.UsageRecord
}

// compare orders lines by the ledger's key.
func (l *line) compare(o *line) int {
	return cmp.Or(bytes.Compare(l.attempt[:], o.attempt[:]), bytes.Compare(l.tenant[:], o.tenant[:]),
		bytes.Compare(l.device[:], o.device[:]), l.day.Compare(o.day))
}

// replays reports whether a line of the same key tells of the same work.
func (l *line) replays(o *line) bool {
	return l.row.NodeEpoch == o.row.NodeEpoch && l.row.StartedAt.UnixMicro() == o.row.StartedAt.UnixMicro()
}

// linesOf checks rows and puts them in the order of the ledger's key. The order
// is the same for all writers, so that those with rows in common wait for one
// another instead of deadlocking. The error wraps ErrBadRow.
func linesOf(rows []tenants.UsageRecord) ([]line, error) {
	lines := make([]line, len(rows))
	for i := range rows {
		if err := lines[i].read(&rows[i]); err != nil {
			return nil, fmt.Errorf("%w: attempt %.40q: %w", ErrBadRow, rows[i].AttemptID, err)
		}
	}
	slices.SortStableFunc(lines, func(a, b line) int { return a.compare(&b) })
	return lines, nil
}

func (l *line) read(r *tenants.UsageRecord) (err error) {
	for _, f := range [...]struct {
		name, text string
		id         *uuid.UUID
	}{
		{"attempt_id", r.AttemptID, &l.attempt}, {"operation_id", r.OperationID, &l.operation},
		{"tenant_id", r.TenantID, &l.tenant}, {"device_id", r.DeviceID, &l.device},
	} {
		if f.id == &l.device && f.text == "" {
			continue
		}
		if *f.id, err = uuid.Parse(f.text); err != nil {
			return fmt.Errorf("%s is not a UUID", f.name)
		}
	}
	for _, n := range [...]int64{r.InputTokens, r.CachedTokens, r.OutputTokens, r.ReasoningTokens, r.Attempt} {
		if n < 0 || n > tenants.MaxRowTokens {
			return fmt.Errorf("a count of %d", n)
		}
	}
	l.day, l.row = dayOf(l.attempt, r.StartedAt), r
	return nil
}

// daysOf returns the partitions that lines belong to.
func daysOf(lines []line) []time.Time {
	days := make([]time.Time, 0, 2)
	for i := range lines {
		if !slices.Contains(days, lines[i].day) {
			days = append(days, lines[i].day)
		}
	}
	return days
}

// epochsOf returns the processes that settled lines.
func epochsOf(lines []line) []string {
	var out []string
	for i := range lines {
		if e := lines[i].row.NodeEpoch; e != "" && !slices.Contains(out, e) {
			out = append(out, e)
		}
	}
	return out
}

// keysOf returns the columns of the lines' keys, and what tells a replay from
// another answer, as missingSQL takes them.
func keysOf(lines []line) []any {
	attempts, owners, devices := make([][16]byte, len(lines)), make([][16]byte, len(lines)), make([][16]byte, len(lines))
	days, starts, epochs := make([]time.Time, len(lines)), make([]time.Time, len(lines)), make([]string, len(lines))
	for i := range lines {
		l := &lines[i]
		attempts[i], owners[i], devices[i], days[i] = l.attempt, l.tenant, l.device, l.day
		starts[i], epochs[i] = l.row.StartedAt, l.row.NodeEpoch
	}
	return []any{attempts, owners, devices, days, starts, epochs}
}
