package format

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/weirhq/weir/experts/load"
	"github.com/weirhq/weir/experts/plan"
)

// maxHeader bounds a safetensors header and maxRanks the files of a folder.
const (
	maxHeader = 16 << 20
	maxRanks  = 4096
)

// readTRTLLM sums the statistics that TensorRT-LLM writes to
// EXPERT_STATISTIC_PATH: meta_info.json and rank*.safetensors whose tensors
// "<iteration>_<layer>" count tokens per expert.
func readTRTLLM(dir string) (Loads, error) {
	var meta struct {
		Experts int `json:"num_experts"`
		TopK    int `json:"num_experts_per_token"`
	}
	raw, err := readFile(filepath.Join(dir, "meta_info.json"))
	if err != nil {
		return Loads{}, err
	}
	if err := json.Unmarshal(raw, &meta); err != nil {
		return Loads{}, fmt.Errorf("meta_info.json: %w: %w", ErrFormat, err)
	}
	if meta.Experts < 1 || meta.Experts > load.MaxExperts || meta.TopK < 0 || meta.TopK > meta.Experts {
		return Loads{}, fmt.Errorf("meta_info.json: %w: top %d of %d experts", ErrFormat, meta.TopK, meta.Experts)
	}
	files, err := filepath.Glob(filepath.Join(dir, "rank*.safetensors"))
	if err != nil {
		return Loads{}, fmt.Errorf("read loads: %w", err)
	}
	files = slices.DeleteFunc(files, func(f string) bool { return strings.HasSuffix(f, "_raw.safetensors") })
	if len(files) == 0 || len(files) > maxRanks {
		return Loads{}, fmt.Errorf("%w: %d files rank*.safetensors beside meta_info.json", ErrFormat, len(files))
	}
	sums := map[int][]float64{}
	for _, f := range files {
		raw, err := readFile(f)
		if err != nil {
			return Loads{}, err
		}
		if err := addSafetensors(sums, raw, meta.Experts); err != nil {
			return Loads{}, fmt.Errorf("%s: %w", filepath.Base(f), err)
		}
	}
	l := Loads{Source: "trtllm", TopK: meta.TopK, Layers: slices.Sorted(maps.Keys(sums))}
	for _, layer := range l.Layers {
		l.Counts = append(l.Counts, sums[layer])
	}
	return l, l.Counts.Validate()
}

// addSafetensors adds the counts of one file to sums, by layer.
func addSafetensors(sums map[int][]float64, raw []byte, experts int) error {
	if len(raw) < 8 {
		return fmt.Errorf("%w: no safetensors header", ErrFormat)
	}
	n := binary.LittleEndian.Uint64(raw)
	if n > maxHeader || n > uint64(len(raw)-8) {
		return fmt.Errorf("%w: safetensors header of %d bytes", ErrFormat, n)
	}
	head, err := fields(raw[8 : 8+n])
	if err != nil {
		return err
	}
	body := raw[8+n:]
	for _, name := range slices.Sorted(maps.Keys(head)) {
		_, layerText, ok := strings.Cut(name, "_")
		layer, err := strconv.Atoi(layerText)
		if !ok || err != nil {
			continue // "__metadata__" and tensors of other kinds
		}
		if layer < 0 || layer >= load.MaxLayers {
			return fmt.Errorf("%w: tensor %.40q names no layer", ErrFormat, name)
		}
		row, err := safetensor(head[name], body, experts)
		if err != nil {
			return fmt.Errorf("tensor %.40q: %w", name, err)
		}
		if sums[layer] == nil {
			sums[layer] = make([]float64, experts)
		}
		for e, x := range row {
			sums[layer][e] += x
		}
	}
	return nil
}

// safetensorKind maps dtypes to the torch names that element knows.
var safetensorKind = map[string]string{
	"I64": "torch.LongStorage", "I32": "torch.IntStorage", "F32": "torch.FloatStorage", "F64": "torch.DoubleStorage",
}

// safetensor reads one vector with a count per expert.
func safetensor(raw json.RawMessage, body []byte, experts int) ([]float64, error) {
	var h struct {
		Dtype   string   `json:"dtype"`
		Shape   []int    `json:"shape"`
		Offsets [2]int64 `json:"data_offsets"`
	}
	if err := json.Unmarshal(raw, &h); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	kind := safetensorKind[h.Dtype]
	size := elementSize[kind]
	if kind == "" || len(h.Shape) != 1 || h.Shape[0] != experts {
		return nil, fmt.Errorf("%w: %.10q of shape %v, want one count for each of %d experts", ErrFormat, h.Dtype, h.Shape, experts)
	}
	from, to := h.Offsets[0], h.Offsets[1]
	if from < 0 || to > int64(len(body)) || to-from != size*int64(experts) {
		return nil, fmt.Errorf("%w: data at %d to %d of %d bytes", ErrFormat, from, to, len(body))
	}
	row := make([]float64, experts)
	for e := range row {
		row[e] = element(kind, body[from+int64(e)*size:])
		if !(row[e] >= 0) || math.IsInf(row[e], 1) {
			return nil, fmt.Errorf("%w: expert %d has count %v", ErrFormat, e, row[e])
		}
	}
	return row, nil
}

// trtllmConfig is the part of a load-balancer config that places experts.
type trtllmConfig struct {
	Slots   int           `yaml:"num_slots"`
	Initial map[int][]int `yaml:"initial_global_assignments"`
	Updates int           `yaml:"layer_updates_per_iter"`
}

// parseTRTLLMPlan reads the config back. The number of devices is not in it.
func parseTRTLLMPlan(data []byte, devices int) (Plan, error) {
	var c trtllmConfig
	if err := yaml.Unmarshal(data, &c); err != nil {
		return Plan{}, fmt.Errorf("%w: not YAML: %w", ErrFormat, err)
	}
	if len(c.Initial) == 0 {
		return Plan{}, fmt.Errorf("%w: no initial_global_assignments", ErrFormat)
	}
	p := Plan{Layers: slices.Sorted(maps.Keys(c.Initial))}
	for _, l := range p.Layers {
		if l < 0 {
			return Plan{}, fmt.Errorf("%w: layer %d", ErrFormat, l)
		}
		if len(c.Initial[l]) != c.Slots {
			return Plan{}, fmt.Errorf("%w: layer %d has %d slots, num_slots is %d", ErrFormat, l, len(c.Initial[l]), c.Slots)
		}
		p.Placement.Layers = append(p.Placement.Layers, c.Initial[l])
	}
	return evenPlan(p, devices)
}

// writeTRTLLM writes num_slots and initial_global_assignments of the MoE
// layers, each device owning a run of num_slots/ep_size. Updates stay 0: the
// assignment is static.
func writeTRTLLM(w io.Writer, p Plan) error {
	if err := equalSlots(p, "TensorRT-LLM"); err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "num_slots: %d\nlayer_updates_per_iter: 0\ninitial_global_assignments:\n", p.Fleet.Total())
	for _, r := range p.moe() {
		fmt.Fprintf(&b, "  %d: [", p.layer(r))
		for i, e := range p.Placement.Layers[r] {
			if i > 0 {
				b.WriteString(", ")
			}
			fmt.Fprint(&b, e)
		}
		b.WriteString("]\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// equalSlots is the rule that every device has the same number of slots.
func equalSlots(p Plan, engine string) error {
	for d, n := range p.Fleet.Slots {
		if n != p.Fleet.Slots[0] {
			return fmt.Errorf("%w: %s has the same number of slots on every device; device %d has %d, device 0 has %d",
				ErrRule, engine, d, n, p.Fleet.Slots[0])
		}
	}
	return nil
}

// evenPlan splits the slots of a plan evenly over devices.
func evenPlan(p Plan, devices int) (Plan, error) {
	rows := p.Placement.Layers
	top := 0
	for _, row := range rows {
		for _, e := range row {
			if e < 0 || e >= load.MaxExperts {
				return Plan{}, fmt.Errorf("%w: expert number %d", ErrFormat, e)
			}
			top = max(top, e)
		}
	}
	slots := len(rows[0])
	if devices < 1 || devices > plan.MaxDevices || slots%devices != 0 {
		return Plan{}, fmt.Errorf("%w: %d slots do not divide over %d devices", ErrFormat, slots, devices)
	}
	p.Experts, p.Fleet = top+1, plan.Uniform(devices, slots/devices)
	return p, nil
}
