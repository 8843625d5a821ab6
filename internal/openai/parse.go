package openai

import (
	"bytes"
	"encoding/json"
	"math"
)

// parser reads typed members of an object and keeps the first error.
type parser struct {
	b      Body
	prefix string
	err    error
}

func isNull(raw json.RawMessage) bool { return bytes.Equal(bytes.TrimSpace(raw), []byte("null")) }

func objectOf(raw json.RawMessage) (Body, error) {
	var b Body
	if err := json.Unmarshal(raw, &b); err != nil {
		return nil, err
	}
	if b == nil {
		return nil, errNull
	}
	return b, nil
}

var errNull = BadRequest("", CodeInvalidValue, "null is not an object")

// get returns a member, or nil when it is absent or null.
func (p *parser) get(name string) json.RawMessage {
	raw, ok := p.b[name]
	if !ok || p.err != nil || isNull(raw) {
		return nil
	}
	return raw
}

func (p *parser) fail(name, format string, a ...any) {
	if p.err == nil {
		full := p.prefix + name
		p.err = BadRequest(full, CodeInvalidValue, full+" "+format, a...)
	}
}

func (p *parser) text(name string, most int) string {
	var s string
	raw := p.get(name)
	if raw == nil {
		return ""
	}
	if json.Unmarshal(raw, &s) != nil {
		p.fail(name, "must be a string")
	} else if len(s) > most {
		p.fail(name, "is longer than %d bytes", most)
	}
	return s
}

func (p *parser) optBoolean(name string) *bool {
	raw := p.get(name)
	if raw == nil {
		return nil
	}
	var v bool
	if json.Unmarshal(raw, &v) != nil {
		p.fail(name, "must be true or false")
	}
	return &v
}

func (p *parser) boolean(name string) bool {
	v := p.optBoolean(name)
	return v != nil && *v
}

func (p *parser) optNumber(name string, least, most float64) *float64 {
	raw := p.get(name)
	if raw == nil {
		return nil
	}
	var v float64
	if json.Unmarshal(raw, &v) != nil {
		p.fail(name, "must be a number from %g to %g", least, most)
	} else if v < least || v > most {
		p.fail(name, "is %g: it must be from %g to %g", v, least, most)
	}
	return &v
}

func (p *parser) optInteger(name string, least, most int) *int {
	raw := p.get(name)
	if raw == nil {
		return nil
	}
	var f float64 // 5.0 is an integer in JSON
	if json.Unmarshal(raw, &f) != nil || f != math.Trunc(f) {
		p.fail(name, "must be an integer")
		return nil
	}
	if f < float64(least) || f > float64(most) {
		p.fail(name, "is %g: it must be from %d to %d", f, least, most)
		return nil
	}
	v := int(f)
	return &v
}

func (p *parser) integer(name string, def, least, most int) int {
	if v := p.optInteger(name, least, most); v != nil {
		return *v
	}
	return def
}

func (p *parser) optInt64(name string) *int64 {
	raw := p.get(name)
	if raw == nil {
		return nil
	}
	var v int64
	if json.Unmarshal(raw, &v) != nil {
		p.fail(name, "must be an integer of 64 bits")
	}
	return &v
}

func (p *parser) stops(name string) []string {
	raw := p.get(name)
	if raw == nil {
		return nil
	}
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return p.checkStops(name, []string{one})
	}
	var many []string
	if json.Unmarshal(raw, &many) != nil {
		p.fail(name, "must be a string or a list of strings")
		return nil
	}
	return p.checkStops(name, many)
}

func (p *parser) checkStops(name string, stops []string) []string {
	if len(stops) > MaxStops {
		p.fail(name, "has %d entries, the most is %d", len(stops), MaxStops)
	}
	for _, s := range stops {
		if s == "" || len(s) > MaxStopBytes {
			p.fail(name, "has an entry of %d bytes: it must be from 1 to %d", len(s), MaxStopBytes)
		}
	}
	return stops
}

func (p *parser) streamOptions(stream bool) bool {
	raw := p.get("stream_options")
	if raw == nil {
		return false
	}
	b, err := objectOf(raw)
	if err != nil {
		p.fail("stream_options", "must be an object")
		return false
	}
	if !stream {
		p.fail("stream_options", "needs stream to be true")
		return false
	}
	in := parser{b: b, prefix: "stream_options."}
	v := in.boolean("include_usage")
	if in.err != nil && p.err == nil {
		p.err = in.err
	}
	return v
}
