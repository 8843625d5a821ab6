// Package format reads expert loads and placements from the files of SGLang,
// TensorRT-LLM, vllm-ascend and Weir, and writes placements for them. Files
// come from elsewhere: no length, shape or name in them is trusted.
package format

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/weirhq/weir/experts/load"
	"github.com/weirhq/weir/experts/plan"
)

// Errors that callers tell apart.
var (
	// ErrFormat says that a file is not what it should be.
	ErrFormat = errors.New("file cannot be read")
	// ErrNotLoads says that a file is sound but holds no loads.
	ErrNotLoads = errors.New("no member logical_count, demand or counts")
	// ErrRule says that a placement breaks a rule of the engine it is for.
	ErrRule = errors.New("engine would refuse the placement")
)

// MaxFile is the largest file that is read, in bytes.
const MaxFile = 256 << 20

// Loads are expert loads as read from a file.
type Loads struct {
	Source string // which format they came from
	Counts load.Counts
	// Layers is the model's layer of each row; nil means that rows are all
	// hidden layers in order.
	Layers []int
	TopK   int // experts per token, 0 when the file does not say
	Window *load.Window
}

// Layer is the model's layer of row r.
func (l Loads) Layer(r int) int {
	if l.Layers == nil {
		return r
	}
	return l.Layers[r]
}

// ReadLoads reads a load file, or a folder of TensorRT-LLM statistics.
func ReadLoads(path string) (Loads, error) {
	st, err := os.Stat(path)
	if err != nil {
		return Loads{}, fmt.Errorf("read loads: %w", err)
	}
	if st.IsDir() {
		return readTRTLLM(path)
	}
	data, err := readFile(path)
	if err != nil {
		return Loads{}, err
	}
	l, err := ParseLoads(data)
	if err != nil {
		return Loads{}, fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return l, nil
}

// readFile reads a regular file of at most MaxFile bytes.
func readFile(path string) ([]byte, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read file: %w", err)
	}
	if !st.Mode().IsRegular() || st.Size() > MaxFile {
		return nil, fmt.Errorf("%s: %w: not a regular file of at most %d MiB", filepath.Base(path), ErrFormat, MaxFile>>20)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read file: %w", err)
	}
	return bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")), nil // a byte order mark
}

// ParseLoads tells the format by its first bytes: a torch zip, else JSON.
func ParseLoads(data []byte) (Loads, error) {
	parse := parseLoadsJSON
	if isZip(data) {
		parse = parseTorchLoads
	}
	l, err := parse(data)
	if err != nil {
		return Loads{}, err
	}
	if err := l.Counts.Validate(); err != nil {
		return Loads{}, err
	}
	if len(l.Counts.MoE()) == 0 {
		return Loads{}, fmt.Errorf("%w: all loads are zero", ErrFormat)
	}
	if l.Layers != nil && !ascending(l.Layers, len(l.Counts)) {
		return Loads{}, fmt.Errorf("%w: layer numbers %v do not name the %d rows in order", ErrFormat, l.Layers, len(l.Counts))
	}
	return l, nil
}

func ascending(ids []int, n int) bool {
	return len(ids) == n && ids[0] >= 0 && ids[n-1] < 1<<20 && slices.IsSorted(ids) && len(slices.Compact(slices.Clone(ids))) == n
}

// Plan is a placement with what files say about its rows.
type Plan struct {
	plan.Placement
	Layers []int // the model's layer of each row; nil means all in order
	MoE    []int // rows that are MoE layers; nil means all
	Hidden int   // hidden layers of the model, 0 means as many as rows
}

// Rows is the placement with one row per row of the loads. A plan has all of
// those rows, or only the MoE layers (dense rows are then trivial), or all hidden
// layers of a model of which the loads have some.
func (p Plan) Rows(l Loads) (plan.Placement, error) {
	have := p.Placement.Layers
	if p.Experts > l.Counts.Experts() {
		return p.Placement, fmt.Errorf("%w: plan names expert %d, the loads have %d experts", ErrFormat, p.Experts-1, l.Counts.Experts())
	}
	out := plan.Trivial(len(l.Counts), l.Counts.Experts(), p.Fleet)
	moe := l.Counts.MoE()
	switch {
	case len(have) == len(l.Counts):
		copy(out.Layers, have)
	case len(have) == len(moe):
		for i, r := range moe {
			out.Layers[r] = have[i]
		}
	case p.Layers == nil && l.Layers != nil && l.Layers[len(l.Layers)-1] < len(have):
		for r, layer := range l.Layers {
			out.Layers[r] = have[layer]
		}
	default:
		return out, fmt.Errorf("%w: plan has %d layers, the loads have %d of which %d are MoE", ErrFormat, len(have), len(l.Counts), len(moe))
	}
	return out, p.sameLayers(l, moe)
}

// sameLayers checks the numbers of the layers where both files have them.
func (p Plan) sameLayers(l Loads, moe []int) error {
	for i, layer := range p.Layers {
		r := i
		if len(p.Layers) == len(moe) {
			r = moe[i]
		}
		if layer != l.Layer(r) {
			return fmt.Errorf("%w: plan has layer %d where the loads have layer %d", ErrFormat, layer, l.Layer(r))
		}
	}
	return nil
}
