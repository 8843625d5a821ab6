package contract

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/internal/openai"
)

func header(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

// withWeir is a body with this weir object, if it is not "".
func withWeir(weir string) openai.Body {
	b := openai.Body{"model": json.RawMessage(`"auto"`)}
	if weir != "" {
		b["weir"] = json.RawMessage(weir)
	}
	return b
}

func TestParseOptions(t *testing.T) {
	tests := []struct {
		name string
		h    http.Header
		weir string
		want Options
	}{
		{"nothing", header(), "", Options{Mode: cascade.ModeAuto, Privacy: cascade.PrivacyAny}},
		{"null object", header(), "null", Options{Mode: cascade.ModeAuto, Privacy: cascade.PrivacyAny}},
		{"headers", header(HeaderMode, "edge-only", HeaderDeadline, "1500", HeaderExplain, "1"), "",
			Options{Mode: cascade.ModeEdgeOnly, Privacy: cascade.PrivacyAny, Deadline: 1500 * time.Millisecond, Explain: true}},
		{"body wins for mode", header(HeaderMode, "edge-only"), `{"mode":"cloud-only"}`,
			Options{Mode: cascade.ModeCloudOnly, Privacy: cascade.PrivacyAny}},
		{"stricter privacy holds", header(HeaderPrivacy, "local-only"), `{"privacy":"any"}`,
			Options{Mode: cascade.ModeAuto, Privacy: cascade.PrivacyLocalOnly}},
		{"stricter deadline holds", header(HeaderDeadline, "100"), `{"deadline_ms":5000}`,
			Options{Mode: cascade.ModeAuto, Privacy: cascade.PrivacyAny, Deadline: 100 * time.Millisecond}},
		{"stricter cost holds", header(HeaderMaxCost, "0.5"), `{"max_cost_usd":0.002}`,
			Options{Mode: cascade.ModeAuto, Privacy: cascade.PrivacyAny, MaxCost: 2_000_000, CostCapped: true}},
		{"a cap of zero is a cap", header(), `{"max_cost_usd":0}`,
			Options{Mode: cascade.ModeAuto, Privacy: cascade.PrivacyAny, CostCapped: true}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseOptions(tt.h, withWeir(tt.weir))
			if err != nil || got != tt.want {
				t.Errorf("ParseOptions = %+v, %v; want %+v", got, err, tt.want)
			}
		})
	}
}

func TestParseOptionsNamesTheFault(t *testing.T) {
	tests := []struct {
		h           http.Header
		weir, param string
	}{
		{header(HeaderMode, "fast"), "", HeaderMode},
		{header(HeaderMode, "auto", HeaderMode, "auto"), "", HeaderMode},
		{header(HeaderPrivacy, "local"), "", HeaderPrivacy},
		{header(HeaderPrivacy, "any, local-only"), "", HeaderPrivacy},
		{header(HeaderDeadline, "-1"), "", HeaderDeadline},
		{header(HeaderDeadline, "1.5"), "", HeaderDeadline},
		{header(HeaderMaxCost, "NaN"), "", HeaderMaxCost},
		{header(HeaderExplain, "yes"), "", HeaderExplain},
		{header(HeaderSession, strings.Repeat("x", 129)), "", HeaderSession},
		{header(HeaderIdempotency, "a\x01"), "", HeaderIdempotency},
		{header(), `[]`, "weir"},
		{header(), `{"mood":"x"}`, "weir.mood"},
		{header(), `{"mode":["auto"]}`, "weir.mode"},
		{header(), `{"session":7}`, "weir.session"},
		{header(), `{"deadline_ms":"500"}`, "weir.deadline_ms"},
		{header(), `{"explain":"1"}`, "weir.explain"},
		{header(), `{"draft":{"text":"a","reason":"because"}}`, "weir.draft.reason"},
		{header(), `{"draft":{"text":"a","reason":"low_confidence","confidence":2}}`, "weir.draft.confidence"},
		{header(), `{"draft":{"body":"a"}}`, "weir.draft"},
		{header(), `{"draft":{"text":"a","Text":"b","reason":"offline"}}`, "weir.draft.Text"},
		{header(), `{"Privacy":"local-only"}`, "weir.Privacy"},
		{header(), `{"privacy":"any","PRIVACY":"local-only"}`, "weir.PRIVACY"},
	}
	for _, tt := range tests {
		_, err := ParseOptions(tt.h, withWeir(tt.weir))
		var e *openai.Error
		if !errors.As(err, &e) || e.Status != 400 || e.Param != tt.param {
			t.Errorf("ParseOptions(%v, %s) = %v; want a 400 naming %s", tt.h, tt.weir, err, tt.param)
		}
	}
}

// TestHeadersOnce gives each header twice: an empty value does not hide another,
// and neither stands for both.
func TestHeadersOnce(t *testing.T) {
	names := []string{HeaderIdempotency}
	for _, m := range members {
		names = append(names, m.header)
	}
	values := map[string]string{HeaderMode: "auto", HeaderPrivacy: "local-only", HeaderDeadline: "5", HeaderMaxCost: "1", HeaderExplain: "1"}
	for _, name := range names {
		v := values[name]
		if v == "" {
			v = "x"
		}
		for _, pair := range [][2]string{{"", v}, {v, ""}, {v, v}, {"", ""}} {
			var e *openai.Error
			if _, err := ParseOptions(header(name, pair[0], name, pair[1]), nil); !errors.As(err, &e) || e.Status != 400 || e.Param != name {
				t.Errorf("%s %q: %v", name, pair, err)
			}
		}
		if _, err := ParseOptions(header(name, v), nil); err != nil {
			t.Errorf("%s %q once: %v", name, v, err)
		}
	}
}

// TestWeirInOtherCapitals: what would be passed over is refused.
func TestWeirInOtherCapitals(t *testing.T) {
	for _, name := range []string{"Weir", "WEIR"} {
		var e *openai.Error
		if _, err := ParseOptions(header(), openai.Body{name: json.RawMessage(`{"privacy":"local-only"}`)}); !errors.As(err, &e) || e.Status != 400 || e.Param != name {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzParseOptions(f *testing.F) {
	f.Add("auto", `{"mode":"auto","deadline_ms":5}`)
	f.Add("", `{"draft":{"text":"x","reason":"offline","confidence":0.5}}`)
	f.Fuzz(func(t *testing.T, mode, weir string) {
		o, err := ParseOptions(header(HeaderMode, mode), withWeir(weir))
		var e *openai.Error
		if err != nil && (!errors.As(err, &e) || e.Status != 400 || e.Param == "") {
			t.Fatalf("error %v names nothing", err)
		}
		if err == nil && o.Draft != nil && !o.Draft.Reason.Valid() {
			t.Fatal("a draft with an unknown reason passed")
		}
	})
}

func TestUSD(t *testing.T) {
	for nano, want := range map[USD]string{0: "0", 1: "0.000000001", 1_500_000_000: "1.5", -20: "-0.00000002", 3_000_000_000: "3"} {
		if got := nano.String(); got != want {
			t.Errorf("USD(%d) = %s, want %s", nano, got, want)
		}
		var back USD
		if err := json.Unmarshal([]byte(want), &back); nano >= 0 && (err != nil || back != nano) {
			t.Errorf("reading %s gave %d, %v", want, back, err)
		}
	}
}

func TestParseID(t *testing.T) {
	if id := NewID(); id == "" {
		t.Fatal("empty id")
	} else if got, err := ParseID(id); err != nil || got != id {
		t.Errorf("ParseID(%s) = %s, %v", id, got, err)
	}
	for _, s := range []string{"", "x", "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "{" + NewID() + "}"} {
		if _, err := ParseID(s); err == nil {
			t.Errorf("ParseID(%q) passed", s)
		}
	}
}
