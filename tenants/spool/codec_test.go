package spool

import (
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirhq/weir/tenants"
)

func TestCodecRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringN(0, 60, maxText)
		n := rapid.Int64()
		id := rapid.StringMatching(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
		r := tenants.UsageRecord{
			AttemptID: id.Draw(t, "a"), OperationID: id.Draw(t, "o"), TenantID: text.Draw(t, "t"), KeyID: text.Draw(t, "k"),
			DeviceID: text.Draw(t, "d"), Tier: tenants.Tier(text.Draw(t, "tier")), Model: text.Draw(t, "m"), Class: text.Draw(t, "c"),
			Outcome: tenants.Outcome(text.Draw(t, "out")), UsageSource: tenants.UsageSource(text.Draw(t, "src")),
			InputTokens: n.Draw(t, "i"), CachedTokens: n.Draw(t, "ca"), OutputTokens: n.Draw(t, "ot"), ReasoningTokens: n.Draw(t, "re"),
			PriceVersion: n.Draw(t, "pv"), CostNanoUSD: n.Draw(t, "co"), TTFTMicros: n.Draw(t, "tt"), TotalMicros: n.Draw(t, "to"),
			StartedAt: time.Unix(rapid.Int64Range(-1<<40, 1<<40).Draw(t, "s"), rapid.Int64Range(0, 999_999_999).Draw(t, "ns")).UTC(),
			Attempt:   n.Draw(t, "at"), ErrorCode: text.Draw(t, "e"), Reason: text.Draw(t, "r"), Node: text.Draw(t, "n"), NodeEpoch: text.Draw(t, "ne"),
		}
		b, err := appendRecord(nil, &r)
		if err != nil {
			t.Fatal(err)
		}
		if len(b) > recordBound(&r) || len(b) > maxRecord {
			t.Fatalf("%d bytes, bound %d", len(b), recordBound(&r))
		}
		back, err := decodeRecord(b)
		if err != nil || !reflect.DeepEqual(back, r) {
			t.Fatalf("%v\n got %+v\nwant %+v", err, back, r)
		}
	})
}
