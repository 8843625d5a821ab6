package format

import (
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/weirhq/weir/experts/load"
	"github.com/weirhq/weir/experts/plan"
)

// Kind is a plan format.
type Kind string

// The plan formats.
const (
	Weir       Kind = "weir"
	SGLang     Kind = "sglang"
	TRTLLM     Kind = "trtllm"
	VLLMAscend Kind = "vllm-ascend"
)

// Kinds lists the plan formats.
func Kinds() []Kind { return []Kind{Weir, SGLang, TRTLLM, VLLMAscend} }

// maxPlan bounds a plan file in bytes.
const maxPlan = 64 << 20

// ReadPlan reads a plan in any format. devices splits the slots of formats
// that do not say where a device ends; others ignore it.
func ReadPlan(path string, devices int) (Plan, error) {
	data, err := readFile(path)
	if err != nil {
		return Plan{}, err
	}
	p, err := ParsePlan(data, devices)
	if err != nil {
		return Plan{}, fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return p, nil
}

// ParsePlan tells the format by its members: JSON, else TensorRT-LLM's YAML.
// Every row is checked for length and range, and that it has all experts that
// the plan names.
func ParsePlan(data []byte, devices int) (Plan, error) {
	if len(data) > maxPlan {
		return Plan{}, fmt.Errorf("%w: plan of %d bytes", ErrFormat, len(data))
	}
	p, err := parsePlan(data, devices)
	if err != nil {
		return Plan{}, err
	}
	for r, row := range p.Placement.Layers {
		if len(row) != p.Fleet.Total() {
			return Plan{}, fmt.Errorf("%w: row %d has %d slots, the devices have %d", ErrFormat, r, len(row), p.Fleet.Total())
		}
		seen := make([]bool, p.Experts)
		for _, e := range row {
			if e < 0 || e >= p.Experts {
				return Plan{}, fmt.Errorf("%w: row %d names expert %d of %d", ErrFormat, r, e, p.Experts)
			}
			seen[e] = true
		}
		if e := slices.Index(seen, false); e >= 0 {
			return Plan{}, fmt.Errorf("%w: row %d has no slot for expert %d", ErrFormat, r, e)
		}
	}
	return p, nil
}

func parsePlan(data []byte, devices int) (Plan, error) {
	if !looksJSON(data) {
		return parseTRTLLMPlan(data, devices)
	}
	m, err := fields(data)
	if err != nil {
		return Plan{}, err
	}
	switch {
	case m["weir_plan"] != nil:
		return parseWeirPlan(data, m)
	case m["physical_to_logical_map"] != nil:
		rows, err := mapRows(m["physical_to_logical_map"])
		if err != nil {
			return Plan{}, err
		}
		return evenPlan(Plan{Placement: plan.Placement{Layers: rows}}, devices)
	case m["layer_list"] != nil:
		return parseAscend(data)
	}
	return Plan{}, fmt.Errorf("%w: no member weir_plan, physical_to_logical_map or layer_list", ErrFormat)
}

func looksJSON(data []byte) bool {
	for _, c := range data {
		switch c {
		case ' ', '\t', '\r', '\n':
			continue
		}
		return c == '{'
	}
	return false
}

func mapRows(raw json.RawMessage) ([][]int, error) {
	a, err := parseArray(raw)
	if err != nil {
		return nil, err
	}
	return a.ints(load.MaxExperts)
}

// weirPlan is Weir's own file: everything that a Plan knows.
type weirPlan struct {
	Version int             `json:"weir_plan"`
	Experts int             `json:"experts"`
	Slots   []int           `json:"slots"`
	Speed   []float64       `json:"speed,omitempty"`
	Layers  []int           `json:"layers,omitempty"`
	MoE     []int           `json:"moe_rows,omitempty"`
	Hidden  int             `json:"hidden_layers,omitempty"`
	Rows    json.RawMessage `json:"physical_to_logical"`
}

func parseWeirPlan(data []byte, m map[string]json.RawMessage) (Plan, error) {
	var f weirPlan
	if err := json.Unmarshal(data, &f); err != nil {
		return Plan{}, fmt.Errorf("%w: plan: %w", ErrFormat, err)
	}
	if f.Version != 1 || f.Experts < 1 || f.Experts > load.MaxExperts {
		return Plan{}, fmt.Errorf("%w: plan version %d of %d experts", ErrFormat, f.Version, f.Experts)
	}
	rows, err := mapRows(m["physical_to_logical"])
	if err != nil {
		return Plan{}, fmt.Errorf("physical_to_logical: %w", err)
	}
	p := Plan{Layers: f.Layers, MoE: f.MoE, Hidden: f.Hidden,
		Placement: plan.Placement{Experts: f.Experts, Fleet: plan.Fleet{Slots: f.Slots, Speed: f.Speed}, Layers: rows}}
	if err := p.Fleet.Validate(f.Experts); err != nil {
		return Plan{}, err
	}
	if p.Layers != nil && !ascending(p.Layers, len(rows)) {
		return Plan{}, fmt.Errorf("%w: layer numbers do not name the %d rows in order", ErrFormat, len(rows))
	}
	if n := len(p.MoE); n > 0 && (!ascending(p.MoE, n) || p.MoE[n-1] >= len(rows)) || p.Hidden < 0 || p.Hidden > load.MaxLayers {
		return Plan{}, fmt.Errorf("%w: moe_rows or hidden_layers do not fit %d rows", ErrFormat, len(rows))
	}
	return p, nil
}

// ascendFile is vllm-ascend's expert map (V1 runner).
type ascendFile struct {
	Count  int           `json:"moe_layer_count"`
	Layers []ascendLayer `json:"layer_list"`
}

type ascendLayer struct {
	ID      int            `json:"layer_id"`
	Count   int            `json:"device_count"`
	Devices []ascendDevice `json:"device_list"`
}

type ascendDevice struct {
	ID      int   `json:"device_id"`
	Experts []int `json:"device_expert"`
}

func parseAscend(data []byte) (Plan, error) {
	var f ascendFile
	if err := json.Unmarshal(data, &f); err != nil {
		return Plan{}, fmt.Errorf("%w: expert map: %w", ErrFormat, err)
	}
	if f.Count != len(f.Layers) || f.Count < 1 || f.Count > load.MaxLayers {
		return Plan{}, fmt.Errorf("%w: moe_layer_count %d for %d layers", ErrFormat, f.Count, len(f.Layers))
	}
	var p Plan
	for i, l := range f.Layers {
		if l.ID != i || l.Count != len(l.Devices) || l.Count < 1 || l.Count > plan.MaxDevices {
			return Plan{}, fmt.Errorf("%w: layer %d with device_count %d for %d devices", ErrFormat, l.ID, l.Count, len(l.Devices))
		}
		var row, slots []int
		for d, dev := range l.Devices {
			if dev.ID != d {
				return Plan{}, fmt.Errorf("%w: layer %d lists device %d in place %d", ErrFormat, i, dev.ID, d)
			}
			row, slots = append(row, dev.Experts...), append(slots, len(dev.Experts))
		}
		if i == 0 {
			p.Fleet.Slots = slots
		}
		if !slices.Equal(slots, p.Fleet.Slots) {
			return Plan{}, fmt.Errorf("%w: layer %d has other slots per device than layer 0", ErrFormat, i)
		}
		p.Placement.Layers = append(p.Placement.Layers, row)
	}
	even, err := evenPlan(Plan{Placement: plan.Placement{Layers: p.Placement.Layers}}, 1)
	if err != nil {
		return Plan{}, err
	}
	p.Experts = even.Experts
	return p, nil
}

// layer is the model's layer of row r.
func (p Plan) layer(r int) int {
	if p.Layers == nil {
		return r
	}
	return p.Layers[r]
}

// moe lists the rows that are MoE layers.
func (p Plan) moe() []int {
	if p.MoE != nil {
		return p.MoE
	}
	rows := make([]int, len(p.Placement.Layers))
	for r := range rows {
		rows[r] = r
	}
	return rows
}

// WritePlan writes a plan in the format of an engine. It wraps ErrRule where
// the engine would refuse or misread the plan.
func WritePlan(w io.Writer, kind Kind, p Plan) error {
	if len(p.Placement.Layers) == 0 {
		return fmt.Errorf("%w: a plan without layers", ErrRule)
	}
	if err := p.Validate(); err != nil {
		return err
	}
	switch kind {
	case Weir:
		return writeWeir(w, p)
	case SGLang:
		return writeSGLang(w, p)
	case TRTLLM:
		return writeTRTLLM(w, p)
	case VLLMAscend:
		return writeAscend(w, p)
	}
	return fmt.Errorf("%w: no format %.40q", ErrRule, string(kind))
}

func writeWeir(w io.Writer, p Plan) error {
	rows := appendRows(nil, p.Placement.Layers)
	return writeJSON(w, weirPlan{Version: 1, Experts: p.Experts, Slots: p.Fleet.Slots, Speed: p.Fleet.Speed,
		Layers: p.Layers, MoE: p.MoE, Hidden: p.Hidden, Rows: rows})
}

// writeSGLang writes the file of --init-expert-location: the one key
// physical_to_logical_map and nothing else, because SGLang passes the object's
// members as keyword arguments, with a row for every hidden layer.
func writeSGLang(w io.Writer, p Plan) error {
	if err := equalSlots(p, "SGLang"); err != nil {
		return err
	}
	hidden := p.Hidden
	if hidden == 0 {
		hidden = p.layer(len(p.Placement.Layers)-1) + 1
	}
	if last := p.layer(len(p.Placement.Layers) - 1); last >= hidden {
		return fmt.Errorf("%w: layer %d of a model with %d hidden layers", ErrRule, last, hidden)
	}
	if p.Layers != nil && p.Hidden == 0 {
		return fmt.Errorf("%w: SGLang wants a row for every hidden layer; give --hidden-layers, the loads do not say how many there are", ErrRule)
	}
	full := plan.Trivial(hidden, p.Experts, p.Fleet)
	for r, row := range p.Placement.Layers {
		full.Layers[p.layer(r)] = row
	}
	return writeJSON(w, struct {
		Map json.RawMessage `json:"physical_to_logical_map"`
	}{appendRows(nil, full.Layers)})
}

// writeAscend writes vllm-ascend's map, which counts MoE layers only. Its
// checker refuses an expert twice on one device, which no plan here has.
func writeAscend(w io.Writer, p Plan) error {
	if err := equalSlots(p, "vllm-ascend"); err != nil {
		return err
	}
	var f ascendFile
	for i, r := range p.moe() {
		l := ascendLayer{ID: i, Count: p.Fleet.Devices()}
		at := 0
		for d, n := range p.Fleet.Slots {
			l.Devices = append(l.Devices, ascendDevice{ID: d, Experts: p.Placement.Layers[r][at : at+n]})
			at += n
		}
		f.Layers = append(f.Layers, l)
	}
	f.Count = len(f.Layers)
	return writeJSON(w, f)
}

func writeJSON(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("write plan: %w", err)
	}
	if _, err := w.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("write plan: %w", err)
	}
	return nil
}

// appendRows writes rows as a JSON array of arrays.
func appendRows(b []byte, rows [][]int) []byte {
	b = append(b, '[')
	for r, row := range rows {
		if r > 0 {
			b = append(b, ',')
		}
		b = append(b, '[')
		for i, e := range row {
			if i > 0 {
				b = append(b, ',')
			}
			b = strconv.AppendInt(b, int64(e), 10)
		}
		b = append(b, ']')
	}
	return append(b, ']')
}
