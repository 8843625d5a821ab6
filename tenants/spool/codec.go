package spool

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/weirhq/weir/tenants"
)

// codecVersion is the first byte of every record. A reader refuses others.
const codecVersion = 1

// maxText bounds each text of a record; its length is one byte.
const maxText = 255

// maxRecord is more than any record takes.
const maxRecord = 4096

var errRecord = errors.New("malformed usage record")

// appendRecord appends the binary form of a ledger row: the two ids as 16
// bytes each, eleven numbers as varints, the texts with their lengths.
func appendRecord(b []byte, r *tenants.UsageRecord) ([]byte, error) {
	b = append(b, codecVersion)
	for _, id := range [...]string{r.AttemptID, r.OperationID} {
		var err error
		if b, err = appendUUID(b, id); err != nil {
			return nil, err
		}
	}
	for _, n := range [...]int64{
		r.InputTokens, r.CachedTokens, r.OutputTokens, r.ReasoningTokens,
		r.PriceVersion, r.CostNanoUSD, r.TTFTMicros, r.TotalMicros,
		r.StartedAt.Unix(), int64(r.StartedAt.Nanosecond()), r.Attempt,
	} {
		b = binary.AppendVarint(b, n)
	}
	for _, s := range [...]string{
		r.TenantID, r.KeyID, r.DeviceID, string(r.Tier), r.Model, r.Class, string(r.Outcome),
		string(r.UsageSource), r.ErrorCode, r.Reason, r.Node, r.NodeEpoch,
	} {
		if len(s) > maxText {
			return nil, fmt.Errorf("%w: a text of %d bytes is over %d", errRecord, len(s), maxText)
		}
		b = append(b, byte(len(s)))
		b = append(b, s...)
	}
	return b, nil
}

// recordBound is at least the length of the record's binary form.
func recordBound(r *tenants.UsageRecord) int {
	return 1 + 2*16 + 11*10 + 12 + len(r.TenantID) + len(r.KeyID) + len(r.DeviceID) + len(r.Tier) + len(r.Model) + len(r.Class) +
		len(r.Outcome) + len(r.UsageSource) + len(r.ErrorCode) + len(r.Reason) + len(r.Node) + len(r.NodeEpoch)
}

func appendUUID(b []byte, id string) ([]byte, error) {
	ok := len(id) == 36 && id[8] == '-' && id[13] == '-' && id[18] == '-' && id[23] == '-'
	for i := 0; ok && i < len(id); i += 2 {
		switch i {
		case 8, 13, 18, 23:
			i++
		}
		hi, lo := digit(id[i]), digit(id[i+1])
		ok = hi|lo < 16
		b = append(b, hi<<4|lo)
	}
	if !ok {
		return nil, fmt.Errorf("%w: id %.40q is not a UUID in lower case", errRecord, id)
	}
	return b, nil
}

// digit returns the value of a hexadecimal digit, 16 for any other character.
func digit(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	}
	return 16
}

// decodeRecord reads what appendRecord wrote, and nothing else.
func decodeRecord(b []byte) (tenants.UsageRecord, error) {
	var d decoder
	return d.record(b)
}

// decoder reads from the front of rest until something is missing.
type decoder struct {
	rest   []byte
	failed bool
	seen   map[string]string // texts by themselves: most repeat from row to row; nil for one row
}

func (d *decoder) record(b []byte) (tenants.UsageRecord, error) {
	d.rest, d.failed = b, false
	if v := d.bytes(1); d.failed || v[0] != codecVersion {
		return tenants.UsageRecord{}, fmt.Errorf("%w: unknown version", errRecord)
	}
	var r tenants.UsageRecord
	r.AttemptID, r.OperationID = d.uuid(), d.uuid()
	var sec, nsec int64
	for _, n := range [...]*int64{
		&r.InputTokens, &r.CachedTokens, &r.OutputTokens, &r.ReasoningTokens,
		&r.PriceVersion, &r.CostNanoUSD, &r.TTFTMicros, &r.TotalMicros, &sec, &nsec, &r.Attempt,
	} {
		*n = d.varint()
	}
	var tier, outcome, source string
	for _, s := range [...]*string{
		&r.TenantID, &r.KeyID, &r.DeviceID, &tier, &r.Model, &r.Class, &outcome,
		&source, &r.ErrorCode, &r.Reason, &r.Node, &r.NodeEpoch,
	} {
		*s = d.text()
	}
	if d.failed || len(d.rest) > 0 || nsec < 0 || nsec > 999_999_999 {
		return tenants.UsageRecord{}, errRecord
	}
	r.Tier, r.Outcome, r.UsageSource = tenants.Tier(tier), tenants.Outcome(outcome), tenants.UsageSource(source)
	r.StartedAt = time.Unix(sec, nsec).UTC()
	return r, nil
}

func (d *decoder) bytes(n int) []byte {
	if d.failed || len(d.rest) < n {
		d.failed = true
		return nil
	}
	b := d.rest[:n]
	d.rest = d.rest[n:]
	return b
}

func (d *decoder) uuid() string {
	raw := d.bytes(16)
	if raw == nil {
		return ""
	}
	var out [36]byte
	hex.Encode(out[:8], raw[:4])
	hex.Encode(out[9:13], raw[4:6])
	hex.Encode(out[14:18], raw[6:8])
	hex.Encode(out[19:23], raw[8:10])
	hex.Encode(out[24:], raw[10:])
	out[8], out[13], out[18], out[23] = '-', '-', '-', '-'
	return string(out[:])
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.rest)
	if d.failed || n <= 0 {
		d.failed = true
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

func (d *decoder) text() string {
	n := d.bytes(1)
	if n == nil {
		return ""
	}
	raw := d.bytes(int(n[0]))
	if s, ok := d.seen[string(raw)]; ok {
		return s
	}
	s := string(raw)
	if d.seen != nil {
		d.seen[s] = s
	}
	return s
}
