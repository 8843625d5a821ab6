package tenants

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
)

func goodRecord() UsageRecord {
	return UsageRecord{
		AttemptID: "01936f5e-7c1a-4b7e-9d53-0a1b2c3d4e5f", OperationID: "01936f5e-7c1a-7b7e-9d53-0a1b2c3d4e5f",
		TenantID: "t1", DeviceID: "d1", KeyID: "abcd1234", Tier: Edge, Model: "hub-edge", Class: "interactive",
		Outcome: OutcomeOK, UsageSource: UsageUpstream,
		InputTokens: 40, CachedTokens: 10, OutputTokens: 20, ReasoningTokens: 5,
		StartedAt: noon, TTFTMicros: 900, TotalMicros: 5000, Reason: "confident",
	}
}

func TestValidateUsage(t *testing.T) {
	cases := []struct {
		field string // "" accepts
		alter func(*UsageRecord)
	}{
		{"", func(*UsageRecord) {}},
		{"", func(r *UsageRecord) { r.KeyID, r.Class, r.Reason = "", "", "" }},
		{"", func(r *UsageRecord) { r.Outcome, r.OutputTokens, r.ReasoningTokens, r.Model = OutcomeShed, 0, 0, "" }},
		{"", func(r *UsageRecord) { r.StartedAt = noon.Add(-MaxRowAge) }},
		{"attempt_id", func(r *UsageRecord) { r.AttemptID = strings.ToUpper(r.AttemptID) }},
		{"attempt_id", func(r *UsageRecord) { r.AttemptID = "" }},
		{"attempt_id", func(r *UsageRecord) { r.AttemptID = strings.Replace(r.AttemptID, "-", "0", 1) }},
		{"operation_id", func(r *UsageRecord) { r.OperationID = r.AttemptID }}, // version 4
		{"key_id", func(r *UsageRecord) { r.KeyID = "wk_abcd" }},
		{"tier", func(r *UsageRecord) { r.Tier = "fog" }},
		{"outcome", func(r *UsageRecord) { r.Outcome = "fine" }},
		{"usage_source", func(r *UsageRecord) { r.UsageSource = "" }},
		{"usage_source", func(r *UsageRecord) { r.Outcome = OutcomeGatewayLost }},
		{"model", func(r *UsageRecord) { r.Model = "" }},
		{"model", func(r *UsageRecord) { r.Model = "a b" }},
		{"class", func(r *UsageRecord) { r.Class = strings.Repeat("x", 129) }},
		{"error_code", func(r *UsageRecord) { r.ErrorCode = "Bad" }},
		{"reason", func(r *UsageRecord) { r.Reason = "no reason" }},
		{"input_tokens", func(r *UsageRecord) { r.InputTokens = -1 }},
		{"output_tokens", func(r *UsageRecord) { r.OutputTokens = MaxRowTokens + 1 }},
		{"output_tokens", func(r *UsageRecord) { r.Outcome = OutcomeRejected }},
		{"cached_tokens", func(r *UsageRecord) { r.CachedTokens = 41 }},
		{"reasoning_tokens", func(r *UsageRecord) { r.ReasoningTokens = 21 }},
		{"price_version", func(r *UsageRecord) { r.PriceVersion = -1 }},
		{"cost_nanousd", func(r *UsageRecord) { r.CostNanoUSD = -1 }},
		{"started_at", func(r *UsageRecord) { r.StartedAt = time.Time{} }},
		{"started_at", func(r *UsageRecord) { r.StartedAt = noon.Add(MaxRowSkew + 1) }},
		{"started_at", func(r *UsageRecord) { r.StartedAt = noon.Add(-MaxRowAge - 1) }},
		{"total_us", func(r *UsageRecord) { r.TotalMicros = -1 }},
		{"ttft_us", func(r *UsageRecord) { r.TTFTMicros = 5001 }},
	}
	for i, c := range cases {
		r := goodRecord()
		c.alter(&r)
		err := r.Validate(noon)
		var fe *FieldError
		errors.As(err, &fe)
		if (c.field == "") != (err == nil) || fe != nil && fe.Field != c.field {
			t.Errorf("case %d: %v, want an error of field %q", i, err, c.field)
		}
	}
}

func TestDecodeUsageReportsRowsOneByOne(t *testing.T) {
	rec := goodRecord()
	good, err := json.Marshal(rec.Row())
	if err != nil {
		t.Fatal(err)
	}
	with := func(old, new string) string { return strings.Replace(string(good), old, new, 1) }
	rows := []string{
		string(good),
		with(`{`, `{"tenant_id":"t2",`),
		with(`{`, `{"device_id":"d2",`),
		with(`"tier":"edge"`, `"tier":"cloud"`),
		with(`"input_tokens":40`, `"input_tokens":"40"`),
		`null`,
		with(`{`, `{"`+strings.Repeat("x", 10_000)+`":1,`),
	}
	got, rejected, err := DecodeUsage([]byte(`{"rows":[`+strings.Join(rows, ",")+`]}`), "t1", "d1", noon)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || !reflect.DeepEqual(got[0], rec) {
		t.Errorf("rows = %+v, want %+v", got, rec)
	}
	if len(rejected) != len(rows)-1 || rejected[0].Index != 1 || rejected[2].Field != "tier" {
		t.Errorf("rejected = %+v", rejected)
	}
	for _, r := range rejected {
		if len(r.Problem) > 2*maxProblemBytes {
			t.Errorf("problem of row %d has %d bytes", r.Index, len(r.Problem))
		}
	}
}

func TestDecodeUsageRefusesBodies(t *testing.T) {
	for name, body := range map[string]string{
		"empty":     ``,
		"not JSON":  `rows`,
		"extra":     `{"rows":[],"tenant_id":"t2"}`,
		"two":       `{"rows":[]}{}`,
		"too many":  `{"rows":[` + strings.Repeat("0,", MaxUsageRows) + `0]}`,
		"too large": `{"rows":[` + strings.Repeat(" ", MaxUsageBytes) + `]}`,
	} {
		if _, _, err := DecodeUsage([]byte(body), "t1", "d1", noon); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func FuzzDecodeUsage(f *testing.F) {
	rec := goodRecord()
	b, _ := json.Marshal(UsageBatch{Rows: []UsageRow{rec.Row()}})
	f.Add(b)
	f.Add([]byte(`{"rows":[null,{},[]]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		rows, rejected, err := DecodeUsage(body, "t1", "d1", noon)
		if err != nil && (rows != nil || rejected != nil) {
			t.Error("rows beside an error")
		}
		for _, r := range rows {
			if r.TenantID != "t1" || r.DeviceID != "d1" || r.Validate(noon) != nil {
				t.Errorf("accepted %+v", r)
			}
		}
	})
}
