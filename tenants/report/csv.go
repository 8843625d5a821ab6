package report

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/weirhq/weir/tenants"
)

// CSV writes reports as RFC 4180 text.
type CSV struct{ w *csv.Writer }

// NewCSV writes to w.
func NewCSV(w io.Writer) *CSV { return &CSV{csv.NewWriter(w)} }

var attemptHeader = []string{"started_at", "attempt_id", "operation_id", "attempt", "tenant_id", "key_id", "device_id", "tier", "model", "class",
	"outcome", "usage_source", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "price_version", "cost_nanousd",
	"ttft_us", "total_us", "error_code", "reason"}

// AttemptHeader writes the line of names for Attempt.
func (c *CSV) AttemptHeader() error { return c.w.Write(attemptHeader) }

// Attempt writes one attempt.
func (c *CSV) Attempt(r tenants.UsageRecord) error {
	return c.w.Write([]string{r.StartedAt.UTC().Format(time.RFC3339Nano), r.AttemptID, r.OperationID, num(r.Attempt), r.TenantID, cell(r.KeyID),
		r.DeviceID, string(r.Tier), cell(r.Model), cell(r.Class), string(r.Outcome), string(r.UsageSource), num(r.InputTokens), num(r.CachedTokens),
		num(r.OutputTokens), num(r.ReasoningTokens), num(r.PriceVersion), num(r.CostNanoUSD), num(r.TTFTMicros), num(r.TotalMicros),
		cell(r.ErrorCode), cell(r.Reason)})
}

// Groups writes sums with a line of names.
func (c *CSV) Groups(groups []Group) error {
	header := append([]string{"at"}, Dimensions...)
	header = append(header, strings.Split(sumColumns, ", ")...)
	if err := c.w.Write(header); err != nil {
		return fmt.Errorf("write CSV: %w", err)
	}
	for _, g := range groups {
		at := ""
		if g.At != nil {
			at = g.At.Format(time.RFC3339)
		}
		err := c.w.Write([]string{at, g.TenantID, cell(g.KeyID), string(g.Tier), cell(g.Model), cell(g.Class), string(g.Outcome), num(g.Requests),
			num(g.Attempts), num(g.InputTokens), num(g.CachedTokens), num(g.OutputTokens), num(g.ReasoningTokens), num(g.CostNanoUSD),
			num(g.Answered), num(g.TTFTMicros), num(g.TotalMicros)})
		if err != nil {
			return fmt.Errorf("write CSV: %w", err)
		}
	}
	return nil
}

// Flush writes what is buffered.
func (c *CSV) Flush() error {
	c.w.Flush()
	return c.w.Error()
}

func num(n int64) string { return strconv.FormatInt(n, 10) }

// cell keeps a spreadsheet from taking foreign text for a formula.
func cell(s string) string {
	if s != "" && strings.ContainsRune("=+-@\t\r", rune(s[0])) {
		return "'" + s
	}
	return s
}
