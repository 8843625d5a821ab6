package format

import (
	"encoding/json"
	"fmt"

	"github.com/weirhq/weir/experts/load"
)

// parseLoadsJSON reads SGLang's logical_count, Weir's windows, and the count
// files of OLMoE (num_experts, layers, counts).
func parseLoadsJSON(data []byte) (Loads, error) {
	m, err := fields(data)
	if err != nil {
		return Loads{}, err
	}
	switch {
	case m["logical_count"] != nil:
		counts, err := countsField(m, "logical_count")
		return Loads{Source: "sglang", Counts: counts}, err
	case m["demand"] != nil:
		return parseWindow(data, m)
	case m["counts"] != nil:
		return parseCounts(m)
	}
	return Loads{}, fmt.Errorf("%w: %w", ErrFormat, ErrNotLoads)
}

func countsField(m map[string]json.RawMessage, name string) (load.Counts, error) {
	a, err := parseArray(m[name])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	c, err := a.loads()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return c, nil
}

// parseWindow reads a load.Window in JSON. Its arrays go through the strict
// parser first.
func parseWindow(data []byte, m map[string]json.RawMessage) (Loads, error) {
	for _, name := range []string{"demand", "served", "rigid"} {
		if raw := m[name]; raw != nil && string(raw) != "null" {
			if _, err := countsField(m, name); err != nil {
				return Loads{}, err
			}
		}
	}
	var w load.Window
	if err := json.Unmarshal(data, &w); err != nil {
		return Loads{}, fmt.Errorf("%w: window: %w", ErrFormat, err)
	}
	if w.Served == nil {
		w.Served = w.Demand
	}
	if w.Tokens < 0 || w.TopK < 0 {
		return Loads{}, fmt.Errorf("%w: window of %d tokens and top %d", ErrFormat, w.Tokens, w.TopK)
	}
	if err := w.Validate(); err != nil {
		return Loads{}, err
	}
	return Loads{Source: "weir", Counts: w.Demand, TopK: w.TopK, Window: &w}, nil
}

func parseCounts(m map[string]json.RawMessage) (Loads, error) {
	counts, err := countsField(m, "counts")
	if err != nil {
		return Loads{}, err
	}
	l := Loads{Source: "counts", Counts: counts}
	experts := counts.Experts()
	for name, to := range map[string]any{"layers": &l.Layers, "top_k": &l.TopK, "num_experts": &experts} {
		if raw := m[name]; raw != nil {
			if err := json.Unmarshal(raw, to); err != nil {
				return Loads{}, fmt.Errorf("%w: %s: %w", ErrFormat, name, err)
			}
		}
	}
	if experts != counts.Experts() {
		return Loads{}, fmt.Errorf("%w: num_experts is %d, rows have %d", ErrFormat, experts, counts.Experts())
	}
	if l.TopK < 0 || l.TopK > experts {
		return Loads{}, fmt.Errorf("%w: top_k is %d of %d experts", ErrFormat, l.TopK, experts)
	}
	return l, nil
}
