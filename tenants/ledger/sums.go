package ledger

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/weirhq/weir/tenants"
)

// group is what a row of the sums is about.
type group struct {
	tenant                          uuid.UUID
	at                              int64 // seconds since 1970 of the minute's or hour's start
	key, tier, model, class, result string
}

func (g group) compare(o group) int {
	return cmp.Or(slices.Compare(g.tenant[:], o.tenant[:]), cmp.Compare(g.at, o.at), cmp.Compare(g.key, o.key), cmp.Compare(g.tier, o.tier),
		cmp.Compare(g.model, o.model), cmp.Compare(g.class, o.class), cmp.Compare(g.result, o.result))
}

// The numbers of a group, in the order of sumColumns.
const (
	requests = iota // operations; an escalated one counts where it was answered
	attempts
	inputTokens
	cachedTokens
	outputTokens
	reasoningTokens
	cost
	answered // attempts with a first token
	ttft
	total
	sumWidth
)

type numbers [sumWidth]int64

// add fails where a sum leaves the range of the column.
func (n *numbers) add(o *numbers) error {
	for i, v := range o {
		s := n[i] + v
		if (s > n[i]) != (v > 0) && v != 0 {
			return fmt.Errorf("%w: its numbers are too large to sum up", ErrBadRow)
		}
		n[i] = s
	}
	return nil
}

func numbersOf(r *tenants.UsageRecord) numbers {
	n := numbers{attempts: 1, inputTokens: r.InputTokens, cachedTokens: r.CachedTokens, outputTokens: r.OutputTokens,
		reasoningTokens: r.ReasoningTokens, cost: r.CostNanoUSD, ttft: r.TTFTMicros, total: r.TotalMicros}
	if r.Attempt <= 1 && r.Outcome != tenants.OutcomeEscalated {
		n[requests] = 1
	}
	if r.TTFTMicros > 0 {
		n[answered] = 1
	}
	return n
}

// table holds the sums of one length of time.
type table map[group]*numbers

func (t table) add(g group, n *numbers) error {
	have, ok := t[g]
	if !ok {
		have = new(numbers)
		t[g] = have
	}
	return have.add(n)
}

type sums struct{ minutes, hours table }

// sum adds lines up by minute, and the minutes by hour.
func sum(lines []line) (sums, error) {
	s := sums{make(table), make(table)}
	for i := range lines {
		l := &lines[i]
		n := numbersOf(l.row)
		g := group{l.tenant, floor(l.row.StartedAt.Unix(), 60), l.row.KeyID, string(l.row.Tier), l.row.Model, l.row.Class, string(l.row.Outcome)}
		if err := s.minutes.add(g, &n); err != nil {
			return s, err
		}
	}
	for g, n := range s.minutes {
		g.at = floor(g.at, 3600)
		if err := s.hours.add(g, n); err != nil {
			return s, err
		}
	}
	return s, nil
}

// floor rounds down to a multiple of by, also before 1970.
func floor(at, by int64) int64 { return at - ((at%by)+by)%by }

// args are the columns of the table in the order of its groups, which is the
// same for all writers.
func (t table) args() []any {
	groups := slices.SortedFunc(maps.Keys(t), group.compare)
	owners, ats := make([][16]byte, len(groups)), make([]time.Time, len(groups))
	var texts [5][]string
	var sums [sumWidth][]int64
	for i, g := range groups {
		owners[i], ats[i] = g.tenant, time.Unix(g.at, 0)
		for j, s := range [...]string{g.key, g.tier, g.model, g.class, g.result} {
			texts[j] = append(texts[j], s)
		}
		for j, n := range t[g] {
			sums[j] = append(sums[j], n)
		}
	}
	out := []any{owners, ats}
	for _, c := range texts {
		out = append(out, c)
	}
	for _, c := range sums {
		out = append(out, c)
	}
	return out
}

var addMinutesSQL, addHoursSQL = addSQL("usage_minute"), addSQL("usage_hour")

// addSQL adds groups to a table of sums, in the order in which they are given:
// writers of the same groups wait for one another.
func addSQL(table string) string {
	return `insert into weir.` + table + ` as t (` + groupKey + `, ` + sumColumns + `)
	select * from unnest($1::uuid[], $2::timestamptz[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
		$8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[], $16::bigint[], $17::bigint[])
	on conflict (` + groupKey + `) do update set ` + addSums
}

const groupKey = `tenant_id, at, key_id, tier, model, class, outcome`

const sumColumns = `requests, attempts, input_tokens, cached_tokens, output_tokens, reasoning_tokens, cost_nanousd, answered, ttft_us, total_us`

const addSums = `requests = t.requests + excluded.requests, attempts = t.attempts + excluded.attempts,
	input_tokens = t.input_tokens + excluded.input_tokens, cached_tokens = t.cached_tokens + excluded.cached_tokens,
	output_tokens = t.output_tokens + excluded.output_tokens, reasoning_tokens = t.reasoning_tokens + excluded.reasoning_tokens,
	cost_nanousd = t.cost_nanousd + excluded.cost_nanousd, answered = t.answered + excluded.answered,
	ttft_us = t.ttft_us + excluded.ttft_us, total_us = t.total_us + excluded.total_us`
